// Package agent implements the Konnectivity agent, which runs in the cluster. It connects to tunnel servers and
// opens the connections that they request
// (https://kubernetes.io/docs/tasks/extend-kubernetes/setup-konnectivity/). It uses the protocol of
// kubernetes-sigs/apiserver-network-proxy. The package must not import the tunnel server.
package agent

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/internal/konnectivity/admin"
	"github.com/trellis-k8s/trellis/internal/specialip"
)

const endpointDialTimeout = 5 * time.Second // limit for connecting to a destination, as in the reference agent

// Config configures an agent. The files are read again for each connection to a server.
type Config struct {
	Host            string // name or address of the servers; their certificate must be valid for it
	Port            int
	ID, Identifiers string // of the agent; Identifiers is a query such as host=…&cidr=…
	TokenFile       string // "" means that no token is sent
	// CAFile "" means the system's CAs. CertFile "" means no client certificate.
	CAFile, CertFile, KeyFile string
	ALPN                      []string
	KeepaliveTime             time.Duration

	SyncInterval, SyncIntervalCap time.Duration // first and longest backoff between attempts
	// If SyncForever is true, the agent keeps looking for servers even when it is connected to the expected number
	// of servers.
	SyncForever bool

	CountLeases bool // count servers by their Leases, read with Kubeconfig or the Pod's token
	// If LargerCount is true, the larger of two server counts is used: the number of Leases, and the number that
	// servers report. Otherwise only Leases count.
	LargerCount    bool
	LeaseNamespace string
	LeaseSelector  labels.Selector
	Kubeconfig     string
	APIContentType string

	HealthAddress, AdminAddress    string // host:port
	Profiling, ContentionProfiling bool
}

// Run runs an agent until ctx is done. The agent then accepts no new connections, and Run returns when all open
// connections have ended, after at most 25 seconds. It returns an error only if the agent cannot start.
func Run(ctx context.Context, c Config) error {
	metrics := NewMetrics()
	if _, err := c.options(metrics); err != nil {
		return err
	}
	servers := newServers(&c, metrics)
	healthHandler := admin.HealthHandler(metrics.registry, servers.serveReady)
	health, err := admin.Serve("health-server-port", c.HealthAddress, healthHandler)

	if err != nil {
		return err
	}
	defer health.Close()
	adminHandler := admin.AdminHandler(metrics.registry, c.Profiling, c.ContentionProfiling)
	adminServer, err := admin.Serve("admin-server-port", c.AdminAddress, adminHandler)
	if err != nil {
		return err
	}
	defer adminServer.Close()
	klog.InfoS("Listening", "health", health.Addr, "admin", adminServer.Addr)
	if c.CountLeases {
		client, err := c.leaseClient()
		if err != nil {
			return fmt.Errorf("--count-server-leases: %w (outside a Pod, set --kubeconfig)", err)
		}
		informer := leaseInformer(client, &c, servers.trigger)
		servers.leases = func() (int, []string) { return countLeases(informer.GetStore().List(), time.Now()) }
		servers.tasks.Go(func() { informer.RunWithContext(ctx) })
	}
	servers.run(ctx)
	servers.drain()
	return nil
}

// serveReady reports at the health port whether a session is open. The texts equal those of the reference agent.
func (s *servers) serveReady(w http.ResponseWriter, r *http.Request) {
	switch {
	case !s.ready():
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, "[+]ping ok\n[-]server-connected failed: no servers connected\n")
	case r.URL.Query().Has("verbose"):
		fmt.Fprint(w, "[+]ping ok\n[+]server-connected ok\ncheck passed\n")
	default:
		fmt.Fprint(w, "ok")
	}
}

// connectOnce opens a session to the server at an address, with the current contents of the files.
func (c *Config) connectOnce(ctx context.Context, address string, metrics *Metrics) (session, error) {
	options, err := c.options(metrics)
	if err != nil {
		return nil, err
	}
	session, err := Connect(ctx, address, options)
	if err != nil {
		return nil, explainTLSError(err) // not session: a nil *Session would be a non-nil interface
	}
	return session, nil
}

// explainTLSError adds a hint to an error if the server has rejected the agent's certificate. The TLS alert
// itself gives no reason.
func explainTLSError(err error) error {
	var alert *net.OpError
	if errors.As(err, &alert) && alert.Op == "remote error" && strings.Contains(alert.Err.Error(), "certificate") {
		return fmt.Errorf("%w: check that the certificate of --agent-cert has not expired and is signed by a CA "+
			"in the server's --cluster-ca-cert", err)
	}
	return err
}

func (c *Config) options(metrics *Metrics) (Options, error) {
	config := &tls.Config{
		ServerName: c.Host,
		MinVersion: tls.VersionTLS12,
		NextProtos: append(slices.Clone(c.ALPN), "h2"),
	}
	options := Options{
		ID:            c.ID,
		Identifiers:   c.Identifiers,
		TLS:           config,
		KeepaliveTime: c.KeepaliveTime,
		Dial:          dialDestination,
		Metrics:       metrics,
	}
	if c.TokenFile != "" {
		options.Token = c.token
	}
	var err error
	if c.CAFile != "" {
		if config.RootCAs, err = cert.NewPool(c.CAFile); err != nil {
			return options, fmt.Errorf("--ca-cert: %w", err)
		}
	}
	if c.CertFile != "" {
		certificate, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return options, fmt.Errorf("--agent-cert, --agent-key: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return options, nil
}

// dialDestination connects to a destination. The API server has checked IP addresses, but cannot check the
// addresses of a DNS name. dialDestination therefore rejects names that resolve to the loopback or link-local
// network or to a metadata service.
func dialDestination(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: endpointDialTimeout}
	if _, err := netip.ParseAddrPort(address); err != nil {
		dialer.Control = func(_, resolved string, _ syscall.RawConn) error {
			endpoint, err := netip.ParseAddrPort(resolved)
			if err == nil {
				err = specialip.Check(endpoint.Addr())
			}
			if err != nil {
				return fmt.Errorf("name must not resolve to %s: %w", resolved, err)
			}
			return nil
		}
	}
	return dialer.DialContext(ctx, network, address)
}

func (c *Config) token() (string, error) {
	data, err := os.ReadFile(c.TokenFile)
	if data = bytes.TrimSpace(data); err == nil && len(data) == 0 {
		err = fmt.Errorf("%s contains no token", c.TokenFile)
	}
	if err != nil {
		return "", fmt.Errorf("--service-account-token-path: %w", err)
	}
	return string(data), nil
}

func (c *Config) leaseClient() (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.ContentType = c.APIContentType
	return kubernetes.NewForConfig(config)
}
