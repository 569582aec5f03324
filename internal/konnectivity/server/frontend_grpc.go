package server

import (
	"net"

	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// maxFrontendStreams is how many connections there may be over one of an API server.
const maxFrontendStreams = 100_000

// ServeFrontends serves API servers, in a mode, until the listener is closed. Its connections are Unix sockets, or TLS that has been agreed
// on or will be.
func (s *Server) ServeFrontends(l net.Listener, mode Mode) error {
	if mode == ModeHTTPConnect {
		return s.serveConnect(l)
	}
	refused := newRejectionLog(s.options.Logger, "a connection to the port for API servers was closed; is its proxyProtocol GRPC, as --mode=grpc needs?",
		"a TLS handshake at the port for API servers failed; have they a certificate of --server-ca-cert, and do they trust --server-cert?")
	return s.listen(l, func(conn net.Conn) {
		c := h2.NewServer(conn, h2.Options{Accept: s.acceptFrontend, MaxStreams: maxFrontendStreams})
		go func() { refused.log(conn, s.run(c, true, s.options.FrontendKeepaliveTime)) }()
	})
}

// acceptFrontend takes a stream of an API server, which is a connection through the tunnel.
func (s *Server) acceptFrontend(stream *h2.Stream, header []hpack.HeaderField) h2.Receiver {
	if path, _ := wire.Field(header, ":path"); path != wire.ProxyMethod {
		return reject(stream, wire.Unimplemented, "this port of the tunnel server serves "+wire.ProxyMethod+" alone")
	}
	leave, err := s.trackConnection(s.metrics.frontendStreams)
	if err != nil {
		return nil // GOAWAY is on its way: it may ask another
	}
	f := &tunnel.Packets{Dialer: s.dial, OnPacket: s.metrics.onFrontendPacket, OnEnd: func(error) { leave() }}
	f.Bind(stream)
	var metadata []string
	if half, _ := wire.Field(header, wire.HalfClose); half == wire.HalfCloseYes {
		f.HalfClose = true
		metadata = []string{wire.HalfClose, wire.HalfCloseYes}
	}
	stream.Header(wire.Response(metadata...), false)
	return f
}
