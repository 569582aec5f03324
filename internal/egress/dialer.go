// Package egress opens every connection of the server to another program: a Dialer connects, and a Transport sends requests. It
// resolves Services itself and needs no kube-proxy. An address of the cluster's objects is checked as it is dialed.
package egress

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"github.com/trellis-k8s/trellis/internal/specialip"
)

const (
	dialTimeout = 30 * time.Second
	keepAlive   = 30 * time.Second
)

// Dialer decides how to get a connection to a Service, or to a host and port. The zero value finds no Services.
type Dialer struct {
	// Cluster opens a connection to a node, a Pod or an endpoint of a Service, ControlPlane one to the host and port of a URL or a
	// kubeconfig; nil is net.Dialer's. Tunnels are others (selector).
	Cluster, ControlPlane func(ctx context.Context, network, address string) (net.Conn, error)
	// Resolve finds an address ("10.0.0.1:8443") behind a port of a Service, for each new connection; nil finds none.
	Resolve func(ctx context.Context, namespace, name string, port int32) (hostPort string, err error)
	// Check returns an error for an address that a Service, a node or a Pod must not lead to; nil is specialip.Check.
	Check func(netip.Addr) error
	// IsLocal reports whether a Service may lead to a loopback address; nil: none may.
	IsLocal func(namespace, name string) bool
	// Generation returns the generation of the endpoints of a Service (Generations); nil: they never change.
	Generation func(namespace, name string) func() uint64
	// Proxy finds the proxy of a request to a host, as http.Transport has it; nil: there is none. Services are connected to
	// without one.
	Proxy func(*http.Request) (*url.URL, error)
	// Metrics count the requests of Transports; nil: they are discarded.
	Metrics *Metrics
	// Self, unless nil, handles the reviews for webhooks that are at this server (NewWebhookTransport).
	Self http.RoundTripper
}

// Service is a port of a Service.
type Service struct {
	Namespace, Name string
	Port            int32
}

// serverName returns the host name in a certificate of the Service.
func (s Service) serverName() string { return s.Name + "." + s.Namespace + ".svc" }

// HostPort returns the host and port of the Service in a URL.
func (s Service) HostPort() string {
	return net.JoinHostPort(s.serverName(), strconv.Itoa(int(s.Port)))
}

// DialContext connects to a host and port that a URL or a kubeconfig names, which may be this machine.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return dial(ctx, d.ControlPlane, network, address)
}

// dial bounds how long it takes.
func dial(ctx context.Context, by func(ctx context.Context, network, address string) (net.Conn, error), network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if by == nil {
		by = (&net.Dialer{KeepAlive: keepAlive}).DialContext
	}
	return by(ctx, network, address)
}

// DialService connects to an endpoint of a Service.
func (d *Dialer) DialService(ctx context.Context, s Service) (net.Conn, error) {
	if d.Resolve == nil {
		return nil, fmt.Errorf("this server finds no Services, and so not %s/%s", s.Namespace, s.Name)
	}
	address, err := d.Resolve(ctx, s.Namespace, s.Name, s.Port)
	if err != nil {
		return nil, err
	}
	return d.DialEndpoint(ctx, s, "tcp", address)
}

// DialEndpoint connects to an endpoint of a Service: an IP address or a name, and a port. IsLocal may permit a loopback address.
func (d *Dialer) DialEndpoint(ctx context.Context, s Service, network, address string) (net.Conn, error) {
	return d.dialChecked(ctx, network, address, func(addr netip.Addr) error {
		err := d.check(addr)
		if err == nil || !addr.Unmap().IsLoopback() {
			return err
		}
		if d.IsLocal != nil && d.IsLocal(s.Namespace, s.Name) {
			return nil
		}
		return fmt.Errorf("%w; --allow-local-services=%s/%s permits it for a Service of type ExternalName", err, s.Namespace, s.Name)
	})
}

// DialNode connects to a node or a Pod.
func (d *Dialer) DialNode(ctx context.Context, network, address string) (net.Conn, error) {
	return d.dialChecked(ctx, network, address, d.check)
}

func (d *Dialer) check(addr netip.Addr) error {
	if d.Check != nil {
		return d.Check(addr)
	}
	return specialip.Check(addr)
}

// dialChecked calls check with the address that it connects to: before the dial if the host spells one, and again as the kernel gets
// it. A name can change its address in between. A tunnel resolves other names at its end.
func (d *Dialer) dialChecked(ctx context.Context, network, address string, check func(netip.Addr) error) (net.Conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if addr, ok := specialip.Parse(host); ok {
		if err := check(addr); err != nil {
			return nil, err
		}
	}
	if d.Cluster != nil {
		return dial(ctx, d.Cluster, network, address)
	}
	checked := net.Dialer{KeepAlive: keepAlive, Control: func(_, address string, _ syscall.RawConn) error {
		endpoint, err := netip.ParseAddrPort(address)
		if err != nil {
			return err
		}
		return check(endpoint.Addr())
	}}
	return dial(ctx, checked.DialContext, network, address)
}
