// Package agent is the end of a Konnectivity tunnel that is in the cluster: it connects to tunnel servers and opens the connections
// that they ask for (https://kubernetes.io/docs/tasks/extend-kubernetes/setup-konnectivity/). It speaks the protocol of
// kubernetes-sigs/apiserver-network-proxy.
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

const endpointDialTimeout = 5 * time.Second // to connect to a destination, as the reference has it

// Config is what an agent is started with. The files are read at each connection to a server.
type Config struct {
	Host                      string // name or address of the servers, which their certificate is for
	Port                      int
	ID, Identifiers           string // of the agent; the identifiers as a query: host=…&cidr=…
	TokenFile                 string // "": no token is sent
	CAFile, CertFile, KeyFile string // CAFile "": the system's; CertFile "": no certificate is shown
	ALPN                      []string
	KeepaliveTime             time.Duration

	SyncInterval, SyncIntervalCap time.Duration // the first and the longest pause between tries
	SyncForever                   bool          // look for more servers than there are said to be

	CountLeases    bool // by Kubeconfig, or as a Pod does
	LargerCount    bool // of Leases and what servers answer; otherwise Leases alone count
	LeaseNamespace string
	LeaseSelector  labels.Selector
	Kubeconfig     string
	APIContentType string

	HealthAddress, AdminAddress    string // host:port
	Profiling, ContentionProfiling bool
}

// Run is an agent. Once ctx is done it takes no new connections, and ends when those that are open have ended, after 25 seconds at most.
// Errors are those of the start.
func Run(ctx context.Context, c Config) error {
	m := NewMetrics()
	if _, err := c.options(m); err != nil {
		return err
	}
	s := newServers(&c, m)
	health, err := admin.Serve("health-server-port", c.HealthAddress, admin.HealthHandler(m.registry, s.serveReady))
	if err != nil {
		return err
	}
	defer health.Close()
	ours, err := admin.Serve("admin-server-port", c.AdminAddress, admin.AdminHandler(m.registry, c.Profiling, c.ContentionProfiling))
	if err != nil {
		return err
	}
	defer ours.Close()
	klog.InfoS("Listening", "health", health.Addr, "admin", ours.Addr)
	if c.CountLeases {
		client, err := c.leaseClient()
		if err != nil {
			return fmt.Errorf("--count-server-leases: %w; name a kubeconfig by --kubeconfig where this is no Pod", err)
		}
		informer := leaseInformer(client, &c, s.trigger)
		s.leases = func() (int, []string) { return countLeases(informer.GetStore().List(), time.Now()) }
		s.tasks.Go(func() { informer.RunWithContext(ctx) })
	}
	s.run(ctx)
	s.drain()
	return nil
}

// serveReady says at the health port whether there is a session, in the reference's words.
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

// connectOnce is Connect by the files as they are now.
func (c *Config) connectOnce(ctx context.Context, address string, m *Metrics) (session, error) {
	o, err := c.options(m)
	if err != nil {
		return nil, err
	}
	x, err := Connect(ctx, address, o)
	if err != nil {
		return nil, explainTLSError(err) // and not a session that is a nil *Session
	}
	return x, nil
}

// explainTLSError adds what to look at where the server has refused the agent's certificate: TLS says that something is wrong with it, and no more.
func explainTLSError(err error) error {
	var told *net.OpError
	if errors.As(err, &told) && told.Op == "remote error" && strings.Contains(told.Err.Error(), "certificate") {
		return fmt.Errorf("%w: is the certificate of --agent-cert signed by a CA that the server takes (its --cluster-ca-cert), and not expired?", err)
	}
	return err
}

func (c *Config) options(m *Metrics) (Options, error) {
	config := &tls.Config{ServerName: c.Host, MinVersion: tls.VersionTLS12, NextProtos: append(slices.Clone(c.ALPN), "h2")}
	o := Options{ID: c.ID, Identifiers: c.Identifiers, TLS: config, KeepaliveTime: c.KeepaliveTime, Dial: dialDestination, Metrics: m}
	if c.TokenFile != "" {
		o.Token = c.token
	}
	var err error
	if c.CAFile != "" {
		if config.RootCAs, err = cert.NewPool(c.CAFile); err != nil {
			return o, fmt.Errorf("--ca-cert: %w", err)
		}
	}
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return o, fmt.Errorf("--agent-cert, --agent-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return o, nil
}

// dialDestination connects to an IP address, which the API server has checked. It resolves a name, which the API server cannot check,
// and refuses one that leads to this machine, its link or a metadata service.
func dialDestination(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: endpointDialTimeout}
	if _, err := netip.ParseAddrPort(address); err != nil {
		dialer.Control = func(_, found string, _ syscall.RawConn) error {
			endpoint, err := netip.ParseAddrPort(found)
			if err == nil {
				err = specialip.Check(endpoint.Addr())
			}
			if err != nil {
				return fmt.Errorf("a name must not stand for %s: %w", found, err)
			}
			return nil
		}
	}
	return dialer.DialContext(ctx, network, address)
}

func (c *Config) token() (string, error) {
	data, err := os.ReadFile(c.TokenFile)
	if data = bytes.TrimSpace(data); err == nil && len(data) == 0 {
		err = fmt.Errorf("there is no token in %s", c.TokenFile)
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
