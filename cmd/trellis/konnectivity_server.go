package main

import (
	"context"
	"fmt"
	"log/slog"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// tunnelKeepalive is how long a connection of a tunnel is silent before it is looked after: below the minutes after which firewalls
// forget it. The reference waits an hour.
const tunnelKeepalive = 30 * time.Second

// reviewQPS and reviewBurst are how many requests a second, and at once, it sends to the API server, where not told otherwise: many agents
// may come back at a time, and strangers beside them, whose tokens are all reviewed.
const reviewQPS, reviewBurst = 50, 100

// konnectivityServer is the flags of the command as they were typed.
type konnectivityServer struct {
	flags  *pflag.FlagSet
	config server.Config

	mode, strategies, minVersion string
	cipherSuites                 []string
	front, agent, admin, health  port

	account                 server.Account
	kubeconfig, contentType string
	qps                     float32
	burst                   int

	lease      bool
	leases     server.Lease
	leaseLabel string
}

// port is one that it listens at.
type port struct {
	number int
	bind   string
}

func newKonnectivityServer() *cobra.Command {
	f := &konnectivityServer{}
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run the end of the tunnel that the API server dials through",
		Long: `Run a Konnectivity server: the API server connects to it through a Unix socket or with TLS, agents in the
cluster with TLS, and what the API server dials, an agent does. It takes the place of the reference's proxy-server, as which it
runs when it is called by that name: the flags are the same, and so are their defaults but those of --keepalive-time,
--frontend-keepalive-time and -v.`,
		Example: `  trellis konnectivity server --uds-name /etc/kubernetes/konnectivity-server/konnectivity-server.socket --server-port 0 \
    --cluster-cert apiserver.crt --cluster-key apiserver.key --agent-namespace kube-system --agent-service-account konnectivity-agent \
    --kubeconfig konnectivity-server.conf --authentication-audience system:konnectivity-server`,
		Args: takes("no arguments", 0, 0),
	}
	logger := f.bind(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f.config.Logger = logger()
		if err := f.complete(); err != nil {
			return err
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop) // a second signal ends the program at once
		go giveMemoryBack(ctx)
		return server.Run(ctx, f.config)
	}
	return cmd
}

// bind declares all flags, and returns the logger that goes by them once they are parsed.
func (f *konnectivityServer) bind(flags *pflag.FlagSet) (logger func() *slog.Logger) {
	f.flags = flags
	f.bindConnections(flags)
	f.bindPorts(flags)
	f.bindCluster(flags)
	fix(flags, "xfr-channel-size", "int", "10", "number of packets that may wait; the limit here is one of bytes")
	fix(flags, "warn-on-channel-limit", "bool", "false", "warnings about packets that wait")
	return klogFlags(flags)
}

// bindConnections declares what connections are like.
func (f *konnectivityServer) bindConnections(flags *pflag.FlagSet) {
	c := &f.config
	flags.StringVar(&f.mode, "mode", string(server.ModeGRPC), "how the API server dials, as in proxyProtocol of its egress configuration: grpc or http-connect")
	flags.StringVar(&c.Socket, "uds-name", "", "Unix socket for the API server, which is the same as udsName of its egress configuration; of mode 0600, so the API server is to run as the same user, or as root; empty: it connects to --server-port")
	flags.BoolVar(&c.ReplaceSocket, "delete-existing-uds-file", true, "remove a socket --uds-name that is left over; one that answers, and a file that is no socket, is never removed")
	flags.StringVar(&c.FrontTLS.CertFile, "server-cert", "", "certificate that the API server sees, without --uds-name; read again when it changes, as are all files of certificates")
	flags.StringVar(&c.FrontTLS.KeyFile, "server-key", "", "key of --server-cert")
	flags.StringVar(&c.FrontTLS.ClientCAFile, "server-ca-cert", "", "CA of the API server's client certificate, without --uds-name")
	flags.StringVar(&c.AgentTLS.CertFile, "cluster-cert", "", "certificate that agents see")
	flags.StringVar(&c.AgentTLS.KeyFile, "cluster-key", "", "key of --cluster-cert")
	flags.StringVar(&c.AgentTLS.ClientCAFile, "cluster-ca-cert", "", "CA of agents' client certificates, which they need then; not with --agent-namespace and others")
	flags.StringSliceVar(&f.cipherSuites, "cipher-suites", nil, "cipher suites up to TLS 1.2, by default Go's: "+strings.Join(cliflag.PreferredTLSCipherNames(), ", "))
	flags.StringVar(&f.minVersion, "tls-min-version", "", "least version of TLS (default VersionTLS12): "+strings.Join(cliflag.TLSPossibleVersions(), ", "))
	flags.DurationVar(&c.KeepaliveTime, "keepalive-time", tunnelKeepalive, "how long an agent is silent before it is pinged (the reference: 1h)")
	flags.DurationVar(&c.FrontendKeepaliveTime, "frontend-keepalive-time", tunnelKeepalive, "how long the API server is silent before it is pinged (the reference: 1h)")
	flags.DurationVar(&c.DialTimeout, "backend-dial-timeout", 0, "how long an agent may take over a dial; 0: the API server says how long")
	flags.DurationVar(&c.GracePeriod, "graceful-shutdown-timeout", 0, "how long open connections may go on after SIGTERM; 0: not at all")
	flags.StringVar(&c.ID, "server-id", "", "ID of this server among others; by default PROXY_SERVER_ID of the environment, or a random one")
	flags.IntVar(&c.Count, "server-count", 1, "number of servers, which agents are told")
	flags.StringVar(&f.strategies, "proxy-strategies", string(server.Default), "how to choose an agent, by the first of these that finds one: default (any; the one with the fewest connections), destHost, defaultRoute")
}

// bindPorts declares where it listens.
func (f *konnectivityServer) bindPorts(flags *pflag.FlagSet) {
	for _, p := range []struct {
		port *port
		like port
		name string
		what string
	}{
		{&f.front, port{8090, ""}, "server", "the API server; 0 with --uds-name"},
		{&f.agent, port{8091, ""}, "agent", "agents; 0: any that is free"},
		{&f.admin, port{8095, "127.0.0.1"}, "admin", "/metrics and /debug/pprof; 0: any that is free"},
		{&f.health, port{8092, ""}, "health", "/healthz, /livez, /readyz and /metrics; 0: any that is free"},
	} {
		flags.IntVar(&p.port.number, p.name+"-port", p.like.number, "port for "+p.what)
		flags.StringVar(&p.port.bind, p.name+"-bind-address", p.like.bind, "address of --"+p.name+"-port; empty: all")
	}
	flags.BoolVar(&f.config.Profiling, "enable-profiling", false, "serve /debug/pprof at --admin-port")
	flags.BoolVar(&f.config.ContentionProfiling, "enable-contention-profiling", false, "with --enable-profiling: profile contention of locks as well")
}

// bindCluster declares what it has to do with the cluster: who agents are, and its own Lease.
func (f *konnectivityServer) bindCluster(flags *pflag.FlagSet) {
	flags.StringVar(&f.account.Namespace, "agent-namespace", "", "namespace of the agents' ServiceAccount; it goes with the next two and --kubeconfig")
	flags.StringVar(&f.account.Name, "agent-service-account", "", "the agents' ServiceAccount")
	flags.StringVar(&f.account.Audience, "authentication-audience", "", "audience of the agents' tokens")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig to review agents' tokens and keep the Lease with; in a Pod by default that of its ServiceAccount")
	flags.Float32Var(&f.qps, "kubeconfig-qps", 0, fmt.Sprintf("requests a second with --kubeconfig; 0: %d (the reference: 5)", reviewQPS))
	flags.IntVar(&f.burst, "kubeconfig-burst", 0, fmt.Sprintf("requests at once with --kubeconfig; 0: %d (the reference: 10)", reviewBurst))
	flags.StringVar(&f.contentType, "kube-api-content-type", runtime.ContentTypeProtobuf, "content type of requests with --kubeconfig")
	flags.BoolVar(&f.lease, "enable-lease-controller", false, "keep a Lease, by which agents count servers, and remove expired ones of others")
	flags.StringVar(&f.leases.Namespace, "lease-namespace", "kube-system", "namespace of the Leases")
	flags.StringVar(&f.leaseLabel, "lease-label", "k8s-app=konnectivity-server", "labels of the Leases: name=value, several with commas")
	flags.StringSliceVar(&f.leases.Addresses, "advertise-agent-address", nil, "where agents reach this server and no other: host, or host:port if that is not --agent-port; they read it from the Lease (the reference has no such flag)")
}
