package agent

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/internal/flags"
)

// Flags holds the values of the flags of an agent.
type Flags struct {
	Config
	fs                                                *pflag.FlagSet
	healthHost, adminHost, leaseSelector, countSource string
	healthPort, adminPort                             int
}

// AddFlags declares the flags. The reference proxy-agent has all of them.
func (f *Flags) AddFlags(fs *pflag.FlagSet) {
	f.fs = fs
	fs.StringVar(&f.Host, "proxy-server-host", "127.0.0.1",
		"host name or IP address of the servers. If a name has several addresses, the agent connects to each of them")
	fs.IntVar(&f.Port, "proxy-server-port", 8091, "port of the servers to which agents connect")
	fs.StringVar(&f.CAFile, "ca-cert", "",
		"file of CAs for the certificates of the servers (empty means the CAs of the system)")
	fs.StringVar(&f.CertFile, "agent-cert", "",
		"file of the client certificate. The agent reads this file and --agent-key for each new connection")
	fs.StringVar(&f.KeyFile, "agent-key", "", "file of the private key of --agent-cert")
	flags.Pair(fs, "agent-cert", "agent-key")
	fs.StringSliceVar(&f.ALPN, "alpn-proto", nil,
		"ALPN protocols to offer in addition to h2, if a proxy in front of the servers requires them")
	fs.StringVar(&f.TokenFile, "service-account-token-path", "",
		"file of the ServiceAccount token to send. The agent reads the file for each new connection")
	fs.StringVar(&f.ID, "agent-id", "",
		"unique ID of this agent (empty means the environment variable PROXY_AGENT_ID, or a new UUID if that is not "+
			"set)")
	fs.StringVar(&f.Identifiers, "agent-identifiers", "",
		"identifiers by which servers choose this agent, in the form of a URL query: "+
			"host=NAME&cidr=RANGE&ipv4=ADDRESS&ipv6=ADDRESS&default-route=true")
	fs.DurationVar(&f.KeepaliveTime, "keepalive-time", 30*time.Second,
		"time without data after which the agent pings a server (1h in the reference proxy-agent)")
	fs.DurationVar(&f.SyncInterval, "sync-interval", time.Second,
		"initial delay between attempts to connect to a server")
	fs.DurationVar(&f.SyncIntervalCap, "sync-interval-cap", 10*time.Second,
		"maximum delay between attempts to connect to a server")
	fs.BoolVar(&f.SyncForever, "sync-forever", false,
		"continue to search for more servers after the agent is connected to the reported number of servers, once "+
			"per --sync-interval-cap")
	flags.Fixed(fs, "probe-interval", "duration", "1s",
		"interval of checks for closed connections. Trellis detects them without checks")
	fs.BoolVar(&f.CountLeases, "count-server-leases", false,
		"count the servers by their Leases, and connect to the addresses in the Leases")
	fs.StringVar(&f.countSource, "server-count-source", "default",
		"source of the number of servers, if both Leases and servers report it: default (use the Leases) or max (use "+
			"the larger number)")
	fs.StringVar(&f.LeaseNamespace, "lease-namespace", "kube-system", "namespace of the Leases")
	fs.StringVar(&f.leaseSelector, "lease-label-selector", "k8s-app=konnectivity-server",
		"label selector of the Leases")
	fs.StringVar(&f.leaseSelector, "lease-label", "k8s-app=konnectivity-server", "label selector of the Leases")
	// cannot fail: the flag is declared above
	_ = fs.MarkDeprecated("lease-label", "use --lease-label-selector instead")
	fs.StringVar(&f.Kubeconfig, "kubeconfig", "",
		"kubeconfig for requests for Leases (empty means the ServiceAccount of the Pod)")
	fs.StringVar(&f.APIContentType, "kube-api-content-type", runtime.ContentTypeProtobuf,
		"content type of requests for Leases")
	fs.StringVar(&f.healthHost, "health-server-host", "",
		"IP address to listen on for /healthz, /livez, /readyz and /metrics (empty means all interfaces)")
	fs.IntVar(&f.healthPort, "health-server-port", 8093,
		"port to listen on at --health-server-host (0 means a free port)")
	fs.StringVar(&f.adminHost, "admin-bind-address", "127.0.0.1",
		"IP address to listen on for /metrics and profiles (empty means all interfaces)")
	fs.IntVar(&f.adminPort, "admin-server-port", 8094,
		"port to listen on at --admin-bind-address (0 means a free port)")
	fs.BoolVar(&f.Profiling, "enable-profiling", false, "serve profiles at /debug/pprof on the admin port")
	fs.BoolVar(&f.ContentionProfiling, "enable-contention-profiling", false,
		"also serve /debug/pprof/block; requires --enable-profiling")
	flags.Fixed(fs, "xfr-channel-size", "int", "150",
		"maximum number of messages in a channel. Trellis limits the number of bytes instead, by flow control")
	flags.Fixed(fs, "warn-on-channel-limit", "bool", "false", "log a warning if a channel is full")
}

// Complete validates the flags and completes the Config.
func (f *Flags) Complete() (err error) {
	switch {
	case f.Host == "":
		return errors.New("--proxy-server-host must not be empty")
	case !isHost(f.Host):
		return fmt.Errorf("--proxy-server-host %q must be a host name or an IP address, without scheme and port. Set "+
			"the port with --proxy-server-port", f.Host)
	case f.KeepaliveTime <= 0:
		return errors.New("--keepalive-time must be greater than 0")
	case f.ContentionProfiling && !f.Profiling:
		return errors.New("--enable-contention-profiling requires --enable-profiling")
	case f.SyncInterval <= 0 || f.SyncInterval > f.SyncIntervalCap:
		return errors.New("--sync-interval must be greater than 0 and at most --sync-interval-cap")
	case !slices.Contains([]string{"", "default", "max"}, f.countSource):
		return fmt.Errorf("--server-count-source %q must be default or max", f.countSource)
	}
	for _, p := range []struct {
		flag        string
		port, least int
	}{
		{"--proxy-server-port", f.Port, 1}, {"--health-server-port", f.healthPort, 0},
		{"--admin-server-port", f.adminPort, 0},
	} {
		if p.port < p.least || p.port > 65535 {
			return fmt.Errorf("%s %d must be between %d and 65535", p.flag, p.port, p.least)
		}
	}
	if err := flags.CheckPairs(f.fs); err != nil {
		return err
	}
	if err := flags.CheckFiles(f.fs, "ca-cert", "agent-cert", "agent-key", "service-account-token-path",
		"kubeconfig"); err != nil {
		return err
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

// isHost reports whether host is an IP address, or can be a host name. A host name contains no special characters of
// a URL.
func isHost(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || !strings.ContainsAny(host, ":/[]@?# ")
}

// identifierKinds holds the kinds of agent identifiers.
var identifierKinds = []string{"host", "cidr", "ipv4", "ipv6", "default-route"}

// checkIdentifiers rejects unknown kinds, and returns a warning for each value that is invalid for its kind. The
// reference proxy-agent accepts any value. One of its manifests contains an unexpanded variable as the value.
func checkIdentifiers(query string) (warnings []string, err error) {
	identifiers, err := url.ParseQuery(query)
	if err != nil {
		return nil, err
	}
	for kind, values := range identifiers {
		if !slices.Contains(identifierKinds, kind) {
			return nil, fmt.Errorf("unknown kind %q, must be one of %v", kind, identifierKinds)
		}
		for _, value := range values {
			if problem := identifierProblem(kind, value); problem != "" {
				warnings = append(warnings, fmt.Sprintf("%s: %q is %s", kind, value, problem))
			}
		}
	}
	return warnings, nil
}

// identifierProblem describes the problem of an identifier. It returns "" if the identifier is valid.
func identifierProblem(kind, value string) string {
	address, _ := netip.ParseAddr(value)
	_, notRange := netip.ParsePrefix(value)
	_, notBool := strconv.ParseBool(value)
	switch {
	case kind == "host" && value == "":
		return "not a host name"
	case kind == "ipv4" && !address.Is4():
		return "not an IPv4 address"
	case kind == "ipv6" && !address.Is6():
		return "not an IPv6 address"
	case kind == "cidr" && notRange != nil:
		return "not a range of addresses such as 192.0.2.0/24"
	case kind == "default-route" && notBool != nil:
		return "not true or false"
	}
	return ""
}
