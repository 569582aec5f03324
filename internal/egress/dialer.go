// Package egress is the one way out: a Dialer opens every connection that the server makes by itself, and a Transport sends
// every request over them. It knows neither what is sent nor why. It needs no kube-proxy: it looks at the endpoints of a
// Service itself.
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
	// Refuse, unless nil, says why an address that Resolve has found must not be dialled.
	Refuse func(netip.Addr) error
	// Generation returns the generation of the endpoints of a Service (Generations); nil: they never change.
	Generation func(namespace, name string) func() uint64
	// Proxy finds the proxy of a request to a host, as http.Transport has it; nil: there is none. Services are connected to
	// without one.
	Proxy func(*http.Request) (*url.URL, error)
	// Metrics count the requests of Transports; nil: nobody looks at them.
	Metrics *Metrics
	// Self, unless nil, answers for this server what its webhooks send to the API itself (NewWebhookTransport).
	Self http.RoundTripper
}

// Service is a port of a Service.
type Service struct {
	Namespace, Name string
	Port            int32
}

// serverName is what a certificate of the Service is for.
func (s Service) serverName() string { return s.Name + "." + s.Namespace + ".svc" }

// HostPort is what a URL has for the Service.
func (s Service) HostPort() string {
	return net.JoinHostPort(s.serverName(), strconv.Itoa(int(s.Port)))
}

// DialContext connects to a host and port that a URL or a kubeconfig names.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return dial(ctx, d.ControlPlane, network, address)
}

// DialKubelet connects to a node's kubelet, which may be on this machine.
func (d *Dialer) DialKubelet(ctx context.Context, network, address string) (net.Conn, error) {
	return dial(ctx, d.Cluster, network, address)
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
	return d.DialEndpoint(ctx, "tcp", address)
}

// DialEndpoint connects to an endpoint of a Service: an address and port, or the name of a Service of type ExternalName. That
// is looked up here, and what it stands for is judged before it is dialled, so that it cannot stand for something else by then.
func (d *Dialer) DialEndpoint(ctx context.Context, network, address string) (net.Conn, error) {
	return d.dialJudged(ctx, network, address, func(a netip.Addr) error {
		if a.IsLoopback() { // a name for this machine is one that an administrator has given it
			return nil
		}
		return d.Refuse(a)
	})
}

// DialOther connects to a node or a Pod. Unlike the name of a Service, no name of theirs may stand for this machine.
func (d *Dialer) DialOther(ctx context.Context, network, address string) (net.Conn, error) {
	return d.dialJudged(ctx, network, address, d.Refuse)
}

// dialJudged asks refuse about the address that a name turns out to stand for. A tunnel looks up names where it ends.
func (d *Dialer) dialJudged(ctx context.Context, network, address string, refuse func(netip.Addr) error) (net.Conn, error) {
	endpoint, err := netip.ParseAddrPort(address)
	switch {
	case d.Refuse == nil:
	case err == nil:
		if err := d.Refuse(endpoint.Addr()); err != nil {
			return nil, err
		}
	case d.Cluster == nil:
		named := net.Dialer{KeepAlive: keepAlive, Control: func(_, address string, _ syscall.RawConn) error {
			endpoint, err := netip.ParseAddrPort(address)
			if err != nil {
				return err
			}
			return refuse(endpoint.Addr())
		}}
		return dial(ctx, named.DialContext, network, address)
	}
	return dial(ctx, d.Cluster, network, address)
}

// RefuseSpecial is a Dialer's Refuse: it refuses what upstream's validation has no endpoint be, an address of this machine
// alone or of its link.
func RefuseSpecial(a netip.Addr) error {
	if a.Unmap().IsGlobalUnicast() {
		return nil
	}
	return fmt.Errorf("%s cannot be the address of an endpoint", a)
}
