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

// newDialer returns the dialer for a connection, or nil for a direct one. path is the location of c in the
// configuration.
func (s *Selector) newDialer(name string, c apiserver.Connection, path *field.Path) (Dial, field.ErrorList) {
	transport := path.Child("transport")
	switch c.ProxyProtocol {
	case apiserver.ProtocolDirect:
		if c.Transport != nil {
			return nil, field.ErrorList{field.Forbidden(transport, "must not be set with proxyProtocol Direct")}
		}
		return nil, nil
	case apiserver.ProtocolHTTPConnect, apiserver.ProtocolGRPC:
	default:
		return nil, field.ErrorList{field.NotSupported(path.Child("proxyProtocol"), c.ProxyProtocol,
			[]apiserver.ProtocolType{apiserver.ProtocolDirect, apiserver.ProtocolGRPC, apiserver.ProtocolHTTPConnect})}
	}
	to, errs := s.tunnelServer(c, transport)
	if len(errs) > 0 {
		return nil, errs
	}
	t := tunnel{name: name, tunnelServer: to, protocol: metrics.ProtocolHTTPConnect}
	t.via = t.viaConnect
	if c.ProxyProtocol == apiserver.ProtocolGRPC {
		t.protocol, t.via = metrics.ProtocolGRPC, s.viaGRPC(to)
	}
	return t.dial, nil
}

// tunnelServer returns the tunnel server of a connection.
func (s *Selector) tunnelServer(c apiserver.Connection, path *field.Path) (*tunnelServer, field.ErrorList) {
	switch t := c.Transport; {
	case t == nil:
		return nil, field.ErrorList{field.Required(path, fmt.Sprintf("proxyProtocol %s requires uds or tcp",
			c.ProxyProtocol))}
	case t.UDS != nil && t.TCP != nil:
		return nil, field.ErrorList{field.Invalid(path, "uds, tcp", "must not set both uds and tcp")}
	case t.UDS != nil && t.UDS.UDSName == "":
		return nil, field.ErrorList{field.Required(path.Child("uds", "udsName"),
			"must be the path of the tunnel server's socket (--uds-name)")}
	case t.UDS != nil:
		if problem := socketProblem(t.UDS.UDSName); problem != "" {
			return nil, field.ErrorList{field.Invalid(path.Child("uds", "udsName"), t.UDS.UDSName, problem)}
		}
		return &tunnelServer{kind: metrics.TransportUDS, network: "unix", address: t.UDS.UDSName}, nil
	case t.TCP != nil:
		return s.overTCP(t.TCP, c.ProxyProtocol, path.Child("tcp"))
	}
	return nil, field.ErrorList{field.Required(path, "must set uds or tcp")}
}

// maxSocketPath is the maximum length of a socket's path in bytes. The kernel needs one more byte for a terminating
// zero.
const maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// socketProblem returns the reason why path cannot be the path of a socket. It returns "" if there is no problem.
// The file may be missing, because the socket may be created later.
func socketProblem(path string) string {
	if len(path) > maxSocketPath {
		return fmt.Sprintf("has %d bytes, but the path of a socket can have only %d", len(path), maxSocketPath)
	}
	if info, err := os.Stat(path); err == nil && info.Mode()&os.ModeSocket == 0 {
		return "is not a socket: must be the path of the tunnel server's socket (--uds-name)"
	}
	return ""
}

// urlProblem returns the reason why u is invalid, or "" if u is valid.
func urlProblem(u *url.URL) string {
	port, err := strconv.ParseUint(cmp.Or(u.Port(), "443"), 10, 16)
	switch {
	case u.Scheme != "https" || u.Hostname() == "":
		return "must be https://host:port, because a tunnel over TCP requires TLS"
	case err != nil || port == 0:
		return "the port must be between 1 and 65535"
	case u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return "must be https://host:port without user, path, query or fragment"
	}
	return ""
}

// overTCP returns a tunnel server that is reached over TCP. TLS is required, because the traffic in the tunnel may be
// unencrypted.
func (s *Selector) overTCP(
	c *apiserver.TCPTransport,
	protocol apiserver.ProtocolType,
	path *field.Path,
) (*tunnelServer, field.ErrorList) {
	u, err := url.Parse(c.URL)
	switch {
	case err != nil:
		return nil, field.ErrorList{field.Invalid(path.Child("url"), c.URL, err.Error())}
	case urlProblem(u) != "":
		return nil, field.ErrorList{field.Invalid(path.Child("url"), u.Redacted(), urlProblem(u))}
	case c.TLSConfig == nil:
		return nil, field.ErrorList{field.Required(path.Child("tlsConfig"), "a tunnel over TCP requires TLS")}
	}
	to := &tunnelServer{kind: metrics.TransportTCP, network: "tcp",
		address: net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))}
	files, errs := openCredentials(c.TLSConfig, path.Child("tlsConfig"))
	if len(errs) > 0 {
		return nil, errs
	}
	files.serverName = cmp.Or(c.TLSConfig.TLSServerName, u.Hostname())
	if protocol == apiserver.ProtocolGRPC {
		files.protocols = []string{"h2"} // RFC 9113, section 3.2: a gRPC server rejects other protocols
	}
	s.run = append(s.run, files.run)
	to.tlsConfig = files.config
	return to, nil
}
