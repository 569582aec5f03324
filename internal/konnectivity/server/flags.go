package server

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/trellis-k8s/trellis/internal/flags"
)

// tunnelKeepalive is the time without data after which a connection of a tunnel is pinged. Firewalls drop idle
// connections after some minutes, so it is shorter. The default of the reference proxy-server is an hour.
const tunnelKeepalive = 30 * time.Second

// reviewQPS and reviewBurst are the default limits of requests to the API server. They permit TokenReviews for many
// agents that reconnect at the same time, and also for unauthenticated clients.
const reviewQPS, reviewBurst = 50, 100

// Flags holds the values of the flags of a server.
type Flags struct {
	Config
	fs *pflag.FlagSet

	strategies, minVersion      string
	cipherSuites                []string
	front, agent, admin, health port

	account                 Account
	kubeconfig, contentType string
	qps                     float32
	burst                   int

	lease      bool
	leases     Lease
	leaseLabel string
}

// port is a port to listen on, and its bind address.
type port struct {
	number int
	bind   string
}

// AddFlags declares the flags. The reference proxy-server has all of them but --advertise-agent-address.
func (f *Flags) AddFlags(fs *pflag.FlagSet) {
	f.fs = fs
	f.addConnections(fs)
	f.addPorts(fs)
	f.addCluster(fs)
	flags.Fixed(fs, "xfr-channel-size", "int", "10",
		"maximum number of packets that wait for a connection. Trellis limits the number of bytes instead")
	flags.Fixed(fs, "warn-on-channel-limit", "bool", "false", "log a warning if too many packets wait")
}

// addConnections declares the flags of connections.
func (f *Flags) addConnections(fs *pflag.FlagSet) {
	c := &f.Config
	fs.StringVar((*string)(&c.Mode), "mode", string(ModeGRPC),
		"protocol between the API server and this server: grpc or http-connect. It must match proxyProtocol in the "+
			"egress configuration of the API server")
	fs.StringVar(&c.Socket, "uds-name", "",
		"path of the Unix socket for the API server, as udsName in its egress configuration. The socket has mode "+
			"0600, so the API server must run as the same user or as root (empty means that the API server connects "+
			"to --server-port)")
	fs.BoolVar(&c.ReplaceSocket, "delete-existing-uds-file", true,
		"remove the file --uds-name if it is a socket that no process uses. Other files are never removed")
	fs.StringVar(&c.FrontendTLS.CertFile, "server-cert", "",
		"file of the serving certificate for the API server when --uds-name is not set. The server reloads all "+
			"certificate files when they change")
	fs.StringVar(&c.FrontendTLS.KeyFile, "server-key", "", "file of the private key of --server-cert")
	fs.StringVar(&c.FrontendTLS.ClientCAFile, "server-ca-cert", "",
		"file of the CA for the client certificate of the API server when --uds-name is not set")
	fs.StringVar(&c.AgentTLS.CertFile, "cluster-cert", "", "file of the serving certificate for agents")
	fs.StringVar(&c.AgentTLS.KeyFile, "cluster-key", "", "file of the private key of --cluster-cert")
	fs.StringVar(&c.AgentTLS.ClientCAFile, "cluster-ca-cert", "",
		"file of the CA for the client certificates of agents. If it is set, agents need such a certificate. It "+
			"cannot be combined with --agent-namespace")
	fs.StringSliceVar(&f.cipherSuites, "cipher-suites", nil,
		"cipher suites for TLS 1.2 and earlier (empty means Go's defaults): "+
			strings.Join(cliflag.PreferredTLSCipherNames(), ", "))
	fs.StringVar(&f.minVersion, "tls-min-version", "", "minimum TLS version: "+
		strings.Join(cliflag.TLSPossibleVersions(), ", ")+" (empty means VersionTLS12)")
	fs.DurationVar(&c.KeepaliveTime, "keepalive-time", tunnelKeepalive,
		"time without data after which the server pings an agent (1h in the reference proxy-server)")
	fs.DurationVar(&c.FrontendKeepaliveTime, "frontend-keepalive-time", tunnelKeepalive,
		"time without data after which the server pings the API server (1h in the reference proxy-server)")
	fs.DurationVar(&c.DialTimeout, "backend-dial-timeout", 0,
		"timeout for an agent to dial a destination (0 means the timeout of the API server)")
	fs.DurationVar(&c.GracePeriod, "graceful-shutdown-timeout", 0,
		"maximum time to wait after SIGTERM until open connections end (0 means that the server does not wait)")
	fs.StringVar(&c.ID, "server-id", "",
		"unique ID of this server (empty means the environment variable PROXY_SERVER_ID, or a random ID if that is "+
			"not set)")
	fs.IntVar(&c.Count, "server-count", 1, "number of servers. The server reports it to agents")
	fs.StringVar(&f.strategies, "proxy-strategies", string(Default),
		"strategies to choose an agent, in order. default chooses the agent with the fewest connections. destHost "+
			"and defaultRoute choose an agent by its identifiers")
}

// addPorts declares the flags of ports and bind addresses.
func (f *Flags) addPorts(fs *pflag.FlagSet) {
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
		fs.IntVar(&p.port.number, p.name+"-port", p.like.number, "port for "+p.use)
		fs.StringVar(&p.port.bind, p.name+"-bind-address", p.like.bind,
			"IP address to listen on for --"+p.name+"-port (empty means all interfaces)")
	}
	fs.BoolVar(&f.Profiling, "enable-profiling", false, "serve profiles at /debug/pprof on --admin-port")
	fs.BoolVar(&f.ContentionProfiling, "enable-contention-profiling", false,
		"also profile lock contention; requires --enable-profiling")
}

// addCluster declares the flags of agent authentication and of the Lease of this server.
func (f *Flags) addCluster(fs *pflag.FlagSet) {
	fs.StringVar(&f.account.Namespace, "agent-namespace", "",
		"namespace of the agents' ServiceAccount; requires --agent-service-account, --authentication-audience and "+
			"--kubeconfig")
	fs.StringVar(&f.account.Name, "agent-service-account", "", "name of the agents' ServiceAccount")
	fs.StringVar(&f.account.Audience, "authentication-audience", "", "audience of the agents' tokens")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "",
		"kubeconfig for TokenReviews and the Lease (empty means the ServiceAccount of the Pod)")
	fs.Float32Var(&f.qps, "kubeconfig-qps", 0,
		fmt.Sprintf(
			"maximum number of requests per second to the API server of --kubeconfig (0 means %d; 5 in the reference "+
				"proxy-server)", reviewQPS))
	fs.IntVar(&f.burst, "kubeconfig-burst", 0,
		fmt.Sprintf(
			"maximum burst of requests to the API server of --kubeconfig (0 means %d; 10 in the reference "+
				"proxy-server)", reviewBurst))
	fs.StringVar(&f.contentType, "kube-api-content-type", runtime.ContentTypeProtobuf,
		"content type of requests to the API server of --kubeconfig")
	fs.BoolVar(&f.lease, "enable-lease-controller", false,
		"keep a Lease for this server, and delete expired Leases of other servers. Agents count servers by their "+
			"Leases")
	fs.StringVar(&f.leases.Namespace, "lease-namespace", "kube-system", "namespace of the Lease")
	fs.StringVar(&f.leaseLabel, "lease-label", "k8s-app=konnectivity-server",
		"labels of the Lease: NAME=VALUE, separated by commas")
	fs.StringSliceVar(&f.leases.Addresses, "advertise-agent-address", nil,
		"address at which agents reach this server and no other: HOST, or HOST:PORT if the port is not --agent-port. "+
			"Agents read it from the Lease. The reference proxy-server does not have this flag")
}
