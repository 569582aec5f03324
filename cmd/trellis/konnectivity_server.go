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

// tunnelKeepalive is the time without data after which a connection of a tunnel is pinged. It is shorter than the
// minutes after which firewalls drop idle connections. The reference uses an hour.
const tunnelKeepalive = 30 * time.Second

// reviewQPS and reviewBurst are the default limits of requests to the API server. They permit TokenReviews for many
// agents that reconnect at the same time, and for unauthenticated connections.
const reviewQPS, reviewBurst = 50, 100

// konnectivityServer holds the values of the flags of konnectivity server.
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

// port is a port to listen on, and its bind address.
type port struct {
	number int
	bind   string
}

func newKonnectivityServer() *cobra.Command {
	f := &konnectivityServer{}
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a Konnectivity server",
		Long: `Run a Konnectivity server. The API server connects to it through a Unix socket or TLS, and agents in the
cluster connect with TLS. An agent dials the destinations that the API server requests. The command replaces the
reference's proxy-server, and runs under that name, too. Its flags and their defaults are the same, except the
defaults of --keepalive-time, --frontend-keepalive-time and -v.`,
		Example: `  trellis konnectivity server \
    --uds-name /etc/kubernetes/konnectivity-server/konnectivity-server.socket --server-port 0 \
    --cluster-cert apiserver.crt --cluster-key apiserver.key \
    --agent-namespace kube-system --agent-service-account konnectivity-agent \
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
		context.AfterFunc(ctx, stop) // a second signal ends the program immediately
		go releaseMemory(ctx)
		return server.Run(ctx, f.config)
	}
	return cmd
}

// bind declares all flags. It returns a function that returns the logger for these flags, after they are parsed.
func (f *konnectivityServer) bind(flags *pflag.FlagSet) (logger func() *slog.Logger) {
	f.flags = flags
	f.bindConnections(flags)
	f.bindPorts(flags)
	f.bindCluster(flags)
	fix(flags, "xfr-channel-size", "int", "10", "number of waiting packets; Trellis limits the number of bytes instead")
	fix(flags, "warn-on-channel-limit", "bool", "false", "warning about waiting packets")
	return klogFlags(flags)
}

// bindConnections declares the flags of connections.
func (f *konnectivityServer) bindConnections(flags *pflag.FlagSet) {
	c := &f.config
	flags.StringVar(&f.mode, "mode", string(server.ModeGRPC),
		"protocol of the API server, as in proxyProtocol of its egress configuration: grpc or http-connect")
	flags.StringVar(&c.Socket, "uds-name", "",
		"Unix socket for the API server, as in udsName of its egress configuration; it has mode 0600, so the API "+
			"server must run as the same user or as root (empty means that the API server connects to --server-port)")
	flags.BoolVar(&c.ReplaceSocket, "delete-existing-uds-file", true,
		"removal of a stale socket --uds-name; a socket in use, and a file that is not a socket, are never removed")
	flags.StringVar(&c.FrontendTLS.CertFile, "server-cert", "",
		"file of the serving certificate for the API server, without --uds-name; all certificates are reloaded when "+
			"they change")
	flags.StringVar(&c.FrontendTLS.KeyFile, "server-key", "", "file of the private key of --server-cert")
	flags.StringVar(&c.FrontendTLS.ClientCAFile, "server-ca-cert", "",
		"file of the CA of the API server's client certificate, without --uds-name")
	flags.StringVar(&c.AgentTLS.CertFile, "cluster-cert", "", "file of the serving certificate for agents")
	flags.StringVar(&c.AgentTLS.KeyFile, "cluster-key", "", "file of the private key of --cluster-cert")
	flags.StringVar(&c.AgentTLS.ClientCAFile, "cluster-ca-cert", "",
		"file of the CA of agents' client certificates, which agents then need; cannot be combined with "+
			"--agent-namespace")
	flags.StringSliceVar(&f.cipherSuites, "cipher-suites", nil,
		"cipher suites up to TLS 1.2 (empty means Go's defaults): "+
			strings.Join(cliflag.PreferredTLSCipherNames(), ", "))
	flags.StringVar(&f.minVersion, "tls-min-version", "", "minimum TLS version: "+
		strings.Join(cliflag.TLSPossibleVersions(), ", ")+" (empty means VersionTLS12)")
	flags.DurationVar(&c.KeepaliveTime, "keepalive-time", tunnelKeepalive,
		"time without data after which the server pings an agent (1h in the reference)")
	flags.DurationVar(&c.FrontendKeepaliveTime, "frontend-keepalive-time", tunnelKeepalive,
		"time without data after which the server pings the API server (1h in the reference)")
	flags.DurationVar(&c.DialTimeout, "backend-dial-timeout", 0,
		"timeout of a dial by an agent (0 means the timeout of the API server)")
	flags.DurationVar(&c.GracePeriod, "graceful-shutdown-timeout", 0,
		"time for open connections to end after SIGTERM (0 means none)")
	flags.StringVar(&c.ID, "server-id", "",
		"unique ID of this server (empty means PROXY_SERVER_ID of the environment, or a random ID)")
	flags.IntVar(&c.Count, "server-count", 1, "number of servers, which the server reports to agents")
	flags.StringVar(&f.strategies, "proxy-strategies", string(server.Default),
		"strategies to choose an agent, in order: default (the agent with the fewest connections), destHost, "+
			"defaultRoute")
}

// bindPorts declares the flags of ports and bind addresses.
func (f *konnectivityServer) bindPorts(flags *pflag.FlagSet) {
	for _, p := range []struct {
		port *port
		like port
		name string
		use  string
	}{
		{&f.front, port{8090, ""}, "server", "the API server (0 with --uds-name)"},
		{&f.agent, port{8091, ""}, "agent", "agents (0 means a free port)"},
		{&f.admin, port{8095, "127.0.0.1"}, "admin", "/metrics and /debug/pprof (0 means a free port)"},
		{&f.health, port{8092, ""}, "health", "/healthz, /livez, /readyz and /metrics (0 means a free port)"},
	} {
		flags.IntVar(&p.port.number, p.name+"-port", p.like.number, "port for "+p.use)
		flags.StringVar(&p.port.bind, p.name+"-bind-address", p.like.bind,
			"bind address of --"+p.name+"-port (empty means all interfaces)")
	}
	flags.BoolVar(&f.config.Profiling, "enable-profiling", false, "serving of /debug/pprof on --admin-port")
	flags.BoolVar(&f.config.ContentionProfiling, "enable-contention-profiling", false,
		"profiling of lock contention, with --enable-profiling")
}

// bindCluster declares the flags of agent authentication and of the Lease of this server.
func (f *konnectivityServer) bindCluster(flags *pflag.FlagSet) {
	flags.StringVar(&f.account.Namespace, "agent-namespace", "",
		"namespace of the agents' ServiceAccount; requires --agent-service-account, --authentication-audience and "+
			"--kubeconfig")
	flags.StringVar(&f.account.Name, "agent-service-account", "", "name of the agents' ServiceAccount")
	flags.StringVar(&f.account.Audience, "authentication-audience", "", "audience of the agents' tokens")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig for TokenReviews and the Lease (empty means the ServiceAccount of the Pod)")
	flags.Float32Var(&f.qps, "kubeconfig-qps", 0,
		fmt.Sprintf("requests per second with --kubeconfig (0 means %d; 5 in the reference)", reviewQPS))
	flags.IntVar(&f.burst, "kubeconfig-burst", 0,
		fmt.Sprintf("burst of requests with --kubeconfig (0 means %d; 10 in the reference)", reviewBurst))
	flags.StringVar(&f.contentType, "kube-api-content-type", runtime.ContentTypeProtobuf,
		"content type of requests with --kubeconfig")
	flags.BoolVar(&f.lease, "enable-lease-controller", false,
		"upkeep of a Lease, by which agents count servers, and deletion of expired Leases of other servers")
	flags.StringVar(&f.leases.Namespace, "lease-namespace", "kube-system", "namespace of the Leases")
	flags.StringVar(&f.leaseLabel, "lease-label", "k8s-app=konnectivity-server",
		"labels of the Leases: name=value, separated by commas")
	flags.StringSliceVar(&f.leases.Addresses, "advertise-agent-address", nil,
		"address at which agents reach only this server: host, or host:port if the port is not --agent-port; agents "+
			"read it from the Lease (does not exist in the reference)")
}
