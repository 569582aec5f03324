// Package egress opens every connection of the server to another program. A Dialer connects, and a Transport sends
// requests. It resolves Services itself and needs no kube-proxy. It checks the addresses of Services, nodes and Pods
// when it dials them.
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

// Dialer opens connections to Services, and to hosts and ports. The zero value cannot resolve Services.
type Dialer struct {
	// Cluster opens a connection to a node, a Pod or an endpoint of a Service. nil means a direct connection.
	// The selector package has functions that dial through a tunnel.
	Cluster func(ctx context.Context, network, address string) (net.Conn, error)
	// ControlPlane opens a connection to the host and port of a URL or a kubeconfig. nil means a direct connection.
	ControlPlane func(ctx context.Context, network, address string) (net.Conn, error)
	// Resolve returns an address ("10.0.0.1:8443") for a port of a Service. It is called for each new connection.
	// nil disables Services.
	Resolve func(ctx context.Context, namespace, name string, port int32) (hostPort string, err error)
	// Check returns an error if a Service, a node or a Pod must not have the address. nil means specialip.Check.
	Check func(netip.Addr) error
	// IsLocal reports whether a Service may have a loopback address. nil means that no Service may have one.
	IsLocal func(namespace, name string) bool
	// Generation returns the generation of a Service's endpoints, as Generations does. nil means that endpoints never
	// change.
	Generation func(namespace, name string) func() uint64
	// Proxy returns the proxy for a request to a host, like http.Transport.Proxy. nil means no proxy.
	// Connections to Services never use a proxy.
	Proxy func(*http.Request) (*url.URL, error)
	// Metrics counts the requests of Transports. nil discards the counts.
	Metrics *Metrics
	// Self handles requests to webhooks that this server serves itself (NewWebhookTransport). nil means that such
	// requests use a connection like all others.
	Self http.RoundTripper
}

// Service is a port of a Service.
type Service struct {
	Namespace, Name string
	Port            int32
}

// serverName returns the host name of the Service, which its certificate must contain.
func (s Service) serverName() string { return s.Name + "." + s.Namespace + ".svc" }

// HostPort returns the host and port for a URL of the Service.
func (s Service) HostPort() string {
	return net.JoinHostPort(s.serverName(), strconv.Itoa(int(s.Port)))
}

// DialContext connects to the host and port of a URL or a kubeconfig. It does not check the address, so the host
// may be this machine.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return dial(ctx, d.ControlPlane, network, address)
}

// dial calls dialFunc with a timeout. A nil dialFunc means a direct connection.
func dial(
	ctx context.Context,
	dialFunc func(ctx context.Context, network, address string) (net.Conn, error),
	network, address string,
) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if dialFunc == nil {
		dialFunc = (&net.Dialer{KeepAlive: keepAlive}).DialContext
	}
	return dialFunc(ctx, network, address)
}

// DialService connects to an endpoint of a Service.
func (d *Dialer) DialService(ctx context.Context, s Service) (net.Conn, error) {
	if d.Resolve == nil {
		return nil, fmt.Errorf("cannot resolve Service %s/%s: service resolution is disabled", s.Namespace, s.Name)
	}
	address, err := d.Resolve(ctx, s.Namespace, s.Name, s.Port)
	if err != nil {
		return nil, err
	}
	return d.DialEndpoint(ctx, s, "tcp", address)
}

// DialEndpoint connects to an endpoint of a Service: an IP address or a host name, and a port.
// IsLocal may permit a loopback address.
func (d *Dialer) DialEndpoint(ctx context.Context, s Service, network, address string) (net.Conn, error) {
	return d.dialChecked(ctx, network, address, func(addr netip.Addr) error {
		err := d.check(addr)
		if err == nil || !addr.Unmap().IsLoopback() {
			return err
		}
		if d.IsLocal != nil && d.IsLocal(s.Namespace, s.Name) {
			return nil
		}
		return fmt.Errorf("%w; --allow-local-services=%s/%s permits it for a Service of type ExternalName",
			err, s.Namespace, s.Name)
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

// dialChecked connects to an address if check returns nil. It checks an IP address before the dial. Without a
// tunnel, it also checks the address to which a host name resolves, when the kernel is about to connect: the
// address of a name can change at any time. A tunnel resolves host names at its far end, where dialChecked cannot
// check them.
func (d *Dialer) dialChecked(
	ctx context.Context,
	network, address string,
	check func(netip.Addr) error,
) (net.Conn, error) {
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
