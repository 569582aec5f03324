package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/internal/konnectivity/agent"
)

// agentFlags are the flags of an agent as they were typed.
type agentFlags struct {
	agent.Config
	healthHost, adminHost, leaseSelector, countSource string
	healthPort, adminPort                             int
}

func newKonnectivityAgent() *cobra.Command {
	var f agentFlags
	var logger func() *slog.Logger
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Connect to tunnel servers, and open the connections into the cluster that they ask for",
		Long: `Connect to Konnectivity servers, this program's or the reference's (kubernetes-sigs/apiserver-network-proxy),
and open the connections that they ask for, where this program runs. Its flags are those of the reference's
proxy-agent, and so is its name if it is called by that.

It finds all servers: by all addresses of --proxy-server-host, by the Leases of servers, or behind a load balancer by
connecting again until it has as many as they say there are. On SIGTERM it takes no new connections, and ends
when the last has ended, after 25 seconds at most; on a second one at once.`,
		Example: `  trellis konnectivity agent --proxy-server-host 192.0.2.10 --proxy-server-port 8132 --ca-cert ca.crt \
    --service-account-token-path /var/run/secrets/tokens/konnectivity-agent-token`,
		Args: takes("flags only", 0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			logger()
			if err := f.complete(); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop)
			defer klog.Flush()
			go giveMemoryBack(ctx)
			return agent.Run(ctx, f.Config)
		},
	}
	f.bind(cmd.Flags())
	logger = klogFlags(cmd.Flags())
	return cmd
}

// bind declares the flags. All are the reference's.
func (f *agentFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.Host, "proxy-server-host", "127.0.0.1", "name or address of the servers; each address of a name is dialled by itself")
	flags.IntVar(&f.Port, "proxy-server-port", 8091, "their port for agents")
	flags.StringVar(&f.CAFile, "ca-cert", "", "file of the CAs of their certificate; by default those of the system")
	flags.StringVar(&f.CertFile, "agent-cert", "", "file of the certificate to show them; read at each connection, as its key is")
	flags.StringVar(&f.KeyFile, "agent-key", "", "file of its key")
	flags.StringSliceVar(&f.ALPN, "alpn-proto", nil, "ALPN protocols to offer beside h2, for what stands in front of the servers")
	flags.StringVar(&f.TokenFile, "service-account-token-path", "", "file of the ServiceAccount's token to send; read at each connection")
	flags.StringVar(&f.ID, "agent-id", "", "unique ID of this agent; by default PROXY_AGENT_ID of the environment, or else a new UUID")
	flags.StringVar(&f.Identifiers, "agent-identifiers", "", "what servers choose it by, URL-encoded: host=NAME&cidr=RANGE&ipv4=ADDRESS&ipv6=ADDRESS&default-route=true")
	flags.DurationVar(&f.KeepaliveTime, "keepalive-time", 30*time.Second, "silence after which a server is asked whether it is there (the reference: 1h)")
	flags.DurationVar(&f.SyncInterval, "sync-interval", time.Second, "first pause before another try to connect to a server")
	flags.DurationVar(&f.SyncIntervalCap, "sync-interval-cap", 10*time.Second, "longest pause, after tries in vain")
	flags.BoolVar(&f.SyncForever, "sync-forever", false, "go on looking for servers at --sync-interval-cap when there are sessions to as many as there are said to be")
	fix(flags, "probe-interval", "duration", "1s", "longest time until the end of a connection is seen, which is at once")
	flags.BoolVar(&f.CountLeases, "count-server-leases", false, "count servers by their Leases, and dial the addresses that these have")
	flags.StringVar(&f.countSource, "server-count-source", "default", "where both Leases and servers say how many there are: default, which is Leases, or max")
	flags.StringVar(&f.LeaseNamespace, "lease-namespace", "kube-system", "namespace of the Leases")
	flags.StringVar(&f.leaseSelector, "lease-label-selector", "k8s-app=konnectivity-server", "selector of the Leases")
	flags.StringVar(&f.leaseSelector, "lease-label", "k8s-app=konnectivity-server", "selector of the Leases")
	_ = flags.MarkDeprecated("lease-label", "use --lease-label-selector instead") // it has just been declared
	flags.StringVar(&f.Kubeconfig, "kubeconfig", "", "kubeconfig to read the Leases by; by default as a Pod does")
	flags.StringVar(&f.APIContentType, "kube-api-content-type", runtime.ContentTypeProtobuf, "content type of requests for Leases")
	flags.StringVar(&f.healthHost, "health-server-host", "", "address to listen on for /healthz, /livez, /readyz and /metrics; by default all")
	flags.IntVar(&f.healthPort, "health-server-port", 8093, "port for these; 0 picks a free one")
	flags.StringVar(&f.adminHost, "admin-bind-address", "127.0.0.1", "address to listen on for /metrics and profiles; empty: all")
	flags.IntVar(&f.adminPort, "admin-server-port", 8094, "port for these; 0 picks a free one")
	flags.BoolVar(&f.Profiling, "enable-profiling", false, "serve profiles at /debug/pprof of the admin port")
	flags.BoolVar(&f.ContentionProfiling, "enable-contention-profiling", false, "with --enable-profiling: /debug/pprof/block too")
	fix(flags, "xfr-channel-size", "int", "150", "messages that a channel holds; a tunnel of Trellis holds the bytes that its flow control allows")
	fix(flags, "warn-on-channel-limit", "bool", "false", "warning about a full channel")
}

// complete fills in what depends on several flags, and refuses what cannot work.
func (f *agentFlags) complete() (err error) {
	switch {
	case f.Host == "":
		return errors.New("--proxy-server-host: name the servers")
	case !isHost(f.Host):
		return fmt.Errorf("--proxy-server-host: %q is no name or address by itself: its port is --proxy-server-port, and there is no scheme", f.Host)
	case (f.CertFile == "") != (f.KeyFile == ""):
		return errors.New("--agent-cert and --agent-key: name both or none")
	case f.KeepaliveTime <= 0:
		return errors.New("--keepalive-time: must be more than 0")
	case f.ContentionProfiling && !f.Profiling:
		return errors.New("--enable-contention-profiling: set --enable-profiling as well")
	case f.SyncInterval <= 0 || f.SyncInterval > f.SyncIntervalCap:
		return errors.New("--sync-interval: must be more than 0, and not more than --sync-interval-cap")
	case !slices.Contains([]string{"", "default", "max"}, f.countSource):
		return fmt.Errorf("--server-count-source: %q is neither default nor max", f.countSource)
	}
	for _, p := range []struct {
		flag        string
		port, least int
	}{{"--proxy-server-port", f.Port, 1}, {"--health-server-port", f.healthPort, 0}, {"--admin-server-port", f.adminPort, 0}} {
		if p.port < p.least || p.port > 65535 {
			return fmt.Errorf("%s: %d is not between %d and 65535", p.flag, p.port, p.least)
		}
	}
	for flag, file := range map[string]string{"--ca-cert": f.CAFile, "--agent-cert": f.CertFile, "--agent-key": f.KeyFile,
		"--service-account-token-path": f.TokenFile, "--kubeconfig": f.Kubeconfig} {
		if _, err := os.Stat(file); file != "" && err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
	}
	warnings, err := checkIdentifiers(f.Identifiers)
	if err != nil {
		return fmt.Errorf("--agent-identifiers: %w", err)
	}
	for _, w := range warnings {
		klog.Warning("--agent-identifiers: " + w)
	}
	if f.LeaseSelector, err = labels.Parse(f.leaseSelector); err != nil {
		return fmt.Errorf("--lease-label-selector: %w", err)
	}
	f.ID = cmp.Or(f.ID, os.Getenv("PROXY_AGENT_ID"), uuid.NewString())
	f.LargerCount = f.countSource == "max"
	f.HealthAddress = net.JoinHostPort(f.healthHost, strconv.Itoa(f.healthPort))
	f.AdminAddress = net.JoinHostPort(f.adminHost, strconv.Itoa(f.adminPort))
	return nil
}

// isHost is true of an address, and of what has nothing of a URL but may be a name.
func isHost(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || !strings.ContainsAny(host, ":/[]@?# ")
}

// identifierKinds are what an agent may say that it is for.
var identifierKinds = []string{"host", "cidr", "ipv4", "ipv6", "default-route"}

// checkIdentifiers refuses kinds that no server knows, and returns a warning for each value that does not fit its kind: the reference accepts
// any, and one of its manifests has a variable there that is never replaced.
func checkIdentifiers(query string) (warnings []string, err error) {
	identifiers, err := url.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	for kind, values := range identifiers {
		if !slices.Contains(identifierKinds, kind) {
			return nil, fmt.Errorf("%q is none of %v", kind, identifierKinds)
		}
		for _, value := range values {
			if wrong := wrongIdentifier(kind, value); wrong != "" {
				warnings = append(warnings, fmt.Sprintf("%s: %q is %s", kind, value, wrong))
			}
		}
	}
	return warnings, nil
}

// wrongIdentifier says what an identifier is not; "": nothing is wrong.
func wrongIdentifier(kind, value string) string {
	address, _ := netip.ParseAddr(value)
	_, notRange := netip.ParsePrefix(value)
	_, notBool := strconv.ParseBool(value)
	switch {
	case kind == "host" && value == "":
		return "no name"
	case kind == "ipv4" && !address.Is4():
		return "no IPv4 address"
	case kind == "ipv6" && !address.Is6():
		return "no IPv6 address"
	case kind == "cidr" && notRange != nil:
		return "no range of addresses like 192.0.2.0/24"
	case kind == "default-route" && notBool != nil:
		return "not true or false"
	}
	return ""
}
