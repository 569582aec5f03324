package selector

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
	"syscall"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/egressselector/metrics"
)

// way is how a connection is got as c says, which stands at a path of the file; nil: directly.
func (s *Selector) way(name string, c apiserver.Connection, at *field.Path) (Dial, field.ErrorList) {
	transport := at.Child("transport")
	switch c.ProxyProtocol {
	case apiserver.ProtocolDirect:
		if c.Transport != nil {
			return nil, field.ErrorList{field.Forbidden(transport, "leave it out with Direct")}
		}
		return nil, nil
	case apiserver.ProtocolHTTPConnect, apiserver.ProtocolGRPC:
	default:
		return nil, field.ErrorList{field.NotSupported(at.Child("proxyProtocol"), c.ProxyProtocol,
			[]apiserver.ProtocolType{apiserver.ProtocolDirect, apiserver.ProtocolGRPC, apiserver.ProtocolHTTPConnect})}
	}
	to, errs := s.entrance(c, transport)
	if len(errs) > 0 {
		return nil, errs
	}
	through := tunnel{name: name, entrance: to, protocol: metrics.ProtocolHTTPConnect}
	through.ask = through.viaConnect
	if c.ProxyProtocol == apiserver.ProtocolGRPC {
		through.protocol, through.ask = metrics.ProtocolGRPC, s.viaGRPC(to)
	}
	return through.dial, nil
}

// entrance is where a tunnel server takes the connections of this server.
func (s *Selector) entrance(c apiserver.Connection, at *field.Path) (*entrance, field.ErrorList) {
	switch t := c.Transport; {
	case t == nil:
		return nil, field.ErrorList{field.Required(at, fmt.Sprintf("%s needs one, uds or tcp", c.ProxyProtocol))}
	case t.UDS != nil && t.TCP != nil:
		return nil, field.ErrorList{field.Invalid(at, "uds, tcp", "there must be one of the two")}
	case t.UDS != nil && t.UDS.UDSName == "":
		return nil, field.ErrorList{field.Required(at.Child("uds", "udsName"), "name the socket that the tunnel server listens on")}
	case t.UDS != nil:
		if wrong := wrongSocket(t.UDS.UDSName); wrong != "" {
			return nil, field.ErrorList{field.Invalid(at.Child("uds", "udsName"), t.UDS.UDSName, wrong)}
		}
		return &entrance{kind: metrics.TransportUDS, network: "unix", address: t.UDS.UDSName}, nil
	case t.TCP != nil:
		return s.overTCP(t.TCP, c.ProxyProtocol, at.Child("tcp"))
	}
	return nil, field.ErrorList{field.Required(at, "there must be one of uds and tcp")}
}

// longestSocket is how many bytes the path of a socket has at most; the system ends it with a zero.
const longestSocket = len(syscall.RawSockaddrUnix{}.Path) - 1

// wrongSocket says why nobody could connect to a socket; "": it may be there, or come.
func wrongSocket(path string) string {
	if len(path) > longestSocket {
		return fmt.Sprintf("has %d bytes, and the path of a socket may have %d", len(path), longestSocket)
	}
	if there, err := os.Stat(path); err == nil && there.Mode()&os.ModeSocket == 0 {
		return "is there, and no socket: name the one that the tunnel server listens on (--uds-name)"
	}
	return ""
}

// wrongURL says why nothing can be connected to by a URL; "": it can be.
func wrongURL(u *url.URL) string {
	port, err := strconv.ParseUint(cmp.Or(u.Port(), "443"), 10, 16)
	switch {
	case u.Scheme != "https" || u.Hostname() == "":
		return "must be https://host:port: a tunnel over TCP needs TLS"
	case err != nil || port == 0:
		return "the port must be between 1 and 65535"
	case u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return "must be https://host:port, with no user, path or query: nobody would be sent them"
	}
	return ""
}

// overTCP is never without TLS: what goes through the tunnel may have none of its own.
func (s *Selector) overTCP(c *apiserver.TCPTransport, protocol apiserver.ProtocolType, at *field.Path) (*entrance, field.ErrorList) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		return nil, field.ErrorList{field.Invalid(at.Child("url"), c.URL, err.Error())}
	case wrongURL(u) != "":
		return nil, field.ErrorList{field.Invalid(at.Child("url"), u.Redacted(), wrongURL(u))}
	case c.TLSConfig == nil:
		return nil, field.ErrorList{field.Required(at.Child("tlsConfig"), "a tunnel over TCP needs TLS")}
	}
	to := &entrance{kind: metrics.TransportTCP, network: "tcp", address: net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))}
	known, errs := openCredentials(c.TLSConfig, at.Child("tlsConfig"))
	if len(errs) > 0 {
		return nil, errs
	}
	known.serverName = cmp.Or(c.TLSConfig.TLSServerName, u.Hostname())
	if protocol == apiserver.ProtocolGRPC {
		known.protocols = []string{"h2"} // RFC 9113, 3.2: a gRPC server turns others away
	}
	s.run = append(s.run, known.follow)
	to.secured = known.config
	return to, nil
}
