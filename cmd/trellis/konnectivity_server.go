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

// tunnelKeepalive is the time without data after which a connection of a tunnel is pinged. Firewalls drop idle
// connections after some minutes, so it is shorter. The default of the reference proxy-server is an hour.
const tunnelKeepalive = 30 * time.Second

// reviewQPS and reviewBurst are the default limits of requests to the API server. They permit TokenReviews for many
// agents that reconnect at the same time, and also for unauthenticated clients.
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
cluster connect with TLS. An agent dials the destinations that the API server requests.

The command can replace the proxy-server of the reference implementation
(kubernetes-sigs/apiserver-network-proxy). If this program has the name proxy-server, it runs this command. The
flags have the same names and defaults, except the defaults of --keepalive-time, --frontend-keepalive-time and -v.`,
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

// bind declares all flags. It returns a function that returns the logger that the flags configure. Callers must parse
// the flags before they call this function.
func (f *konnectivityServer) bind(flags *pflag.FlagSet) (logger func() *slog.Logger) {
	f.flags = flags
	f.bindConnections(flags)
	f.bindPorts(flags)
	f.bindCluster(flags)
	fix(flags, "xfr-channel-size", "int", "10",
		"maximum number of packets that wait for a connection. Trellis limits the number of bytes instead")
	fix(flags, "warn-on-channel-limit", "bool", "false", "log a warning if too many packets wait")
	return klogFlags(flags)
}

// bindConnections declares the flags of connections.
func (f *konnectivityServer) bindConnections(flags *pflag.FlagSet) {
	c := &f.config
	flags.StringVar(&f.mode, "mode", string(server.ModeGRPC),
		"protocol between the API server and this server: grpc or http-connect. It must match proxyProtocol in the "+
			"egress configuration of the API server")
	flags.StringVar(&c.Socket, "uds-name", "",
		"path of the Unix socket for the API server, as udsName in its egress configuration. The socket has mode "+
			"0600, so the API server must run as the same user or as root (empty means that the API server connects "+
			"to --server-port)")
	flags.BoolVar(&c.ReplaceSocket, "delete-existing-uds-file", true,
		"remove the file --uds-name if it is a socket that no process uses. Other files are never removed")
	flags.StringVar(&c.FrontendTLS.CertFile, "server-cert", "",
		"file of the serving certificate for the API server when --uds-name is not set. The server reloads all "+
			"certificate files when they change")
	flags.StringVar(&c.FrontendTLS.KeyFile, "server-key", "", "file of the private key of --server-cert")
	flags.StringVar(&c.FrontendTLS.ClientCAFile, "server-ca-cert", "",
		"file of the CA for the client certificate of the API server when --uds-name is not set")
	flags.StringVar(&c.AgentTLS.CertFile, "cluster-cert", "", "file of the serving certificate for agents")
	flags.StringVar(&c.AgentTLS.KeyFile, "cluster-key", "", "file of the private key of --cluster-cert")
	flags.StringVar(&c.AgentTLS.ClientCAFile, "cluster-ca-cert", "",
		"file of the CA for the client certificates of agents. If it is set, agents need such a certificate. It "+
			"cannot be combined with --agent-namespace")
	flags.StringSliceVar(&f.cipherSuites, "cipher-suites", nil,
		"cipher suites for TLS 1.2 and earlier (empty means Go's defaults): "+
			strings.Join(cliflag.PreferredTLSCipherNames(), ", "))
	flags.StringVar(&f.minVersion, "tls-min-version", "", "minimum TLS version: "+
		strings.Join(cliflag.TLSPossibleVersions(), ", ")+" (empty means VersionTLS12)")
	flags.DurationVar(&c.KeepaliveTime, "keepalive-time", tunnelKeepalive,
		"time without data after which the server pings an agent (1h in the reference proxy-server)")
	flags.DurationVar(&c.FrontendKeepaliveTime, "frontend-keepalive-time", tunnelKeepalive,
		"time without data after which the server pings the API server (1h in the reference proxy-server)")
	flags.DurationVar(&c.DialTimeout, "backend-dial-timeout", 0,
		"timeout for an agent to dial a destination (0 means the timeout of the API server)")
	flags.DurationVar(&c.GracePeriod, "graceful-shutdown-timeout", 0,
		"maximum time to wait after SIGTERM until open connections end (0 means that the server does not wait)")
	flags.StringVar(&c.ID, "server-id", "",
		"unique ID of this server (empty means the environment variable PROXY_SERVER_ID, or a random ID if that is "+
			"not set)")
	flags.IntVar(&c.Count, "server-count", 1, "number of servers. The server reports it to agents")
	flags.StringVar(&f.strategies, "proxy-strategies", string(server.Default),
		"strategies to choose an agent, in order. default chooses the agent with the fewest connections. destHost "+
			"and defaultRoute choose an agent by its identifiers")
}

// bindPorts declares the flags of ports and bind addresses.
func (f *konnectivityServer) bindPorts(flags *pflag.FlagSet) {
	for _, p := range []struct {
		port *port
		like port
		name string
		use  string
	}{
		{&f.front, port{8090, ""}, "server", "the API server (must be 0 when --uds-name is set)"},
		{&f.agent, port{8091, ""}, "agent", "agents (0 means a free port)"},
		{&f.admin, port{8095, "127.0.0.1"}, "admin", "/metrics and /debug/pprof (0 means a free port)"},
		{&f.health, port{8092, ""}, "health", "/healthz, /livez, /readyz and /metrics (0 means a free port)"},
	} {
		flags.IntVar(&p.port.number, p.name+"-port", p.like.number, "port for "+p.use)
		flags.StringVar(&p.port.bind, p.name+"-bind-address", p.like.bind,
			"IP address to listen on for --"+p.name+"-port (empty means all interfaces)")
	}
	flags.BoolVar(&f.config.Profiling, "enable-profiling", false, "serve profiles at /debug/pprof on --admin-port")
	flags.BoolVar(&f.config.ContentionProfiling, "enable-contention-profiling", false,
		"also profile lock contention; requires --enable-profiling")
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
		fmt.Sprintf(
			"maximum number of requests per second to the API server of --kubeconfig (0 means %d; 5 in the reference "+
				"proxy-server)", reviewQPS))
	flags.IntVar(&f.burst, "kubeconfig-burst", 0,
		fmt.Sprintf(
			"maximum burst of requests to the API server of --kubeconfig (0 means %d; 10 in the reference "+
				"proxy-server)", reviewBurst))
	flags.StringVar(&f.contentType, "kube-api-content-type", runtime.ContentTypeProtobuf,
		"content type of requests to the API server of --kubeconfig")
	flags.BoolVar(&f.lease, "enable-lease-controller", false,
		"keep a Lease for this server, and delete expired Leases of other servers. Agents count servers by their "+
			"Leases")
	flags.StringVar(&f.leases.Namespace, "lease-namespace", "kube-system", "namespace of the Lease")
	flags.StringVar(&f.leaseLabel, "lease-label", "k8s-app=konnectivity-server",
		"labels of the Lease: NAME=VALUE, separated by commas")
	flags.StringSliceVar(&f.leases.Addresses, "advertise-agent-address", nil,
		"address at which agents reach this server and no other: HOST, or HOST:PORT if the port is not --agent-port. "+
			"Agents read it from the Lease. The reference proxy-server does not have this flag")
}
