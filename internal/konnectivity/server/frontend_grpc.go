package server

import (
	"net"

	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// maxFrontendStreams is the maximum number of tunnelled connections over one connection of an API server.
const maxFrontendStreams = 100_000

// ServeFrontends accepts connections of API servers until the listener is closed. The connections are Unix
// sockets or TLS connections, before or after the handshake.
func (s *Server) ServeFrontends(l net.Listener, mode Mode) error {
	if mode == ModeHTTPConnect {
		return s.serveConnect(l)
	}
	rejections := newRejectionLog(s.options.Logger,
		"closed a connection of an API server: it does not speak HTTP/2 (with --mode=grpc, the API server must use "+
			"proxyProtocol GRPC)",
		"TLS handshake of an API server failed (check that API servers trust --server-cert and have a "+
			"certificate of a CA in --server-ca-cert)")
	return s.listen(l, func(conn net.Conn) {
		c := h2.NewServer(conn, h2.Options{Accept: s.acceptFrontend, MaxStreams: maxFrontendStreams})
		go func() { rejections.log(conn, s.run(c, true, s.options.FrontendKeepaliveTime)) }()
	})
}

// acceptFrontend accepts a stream of an API server, which requests one tunnelled connection.
func (s *Server) acceptFrontend(stream *h2.Stream, header []hpack.HeaderField) h2.Receiver {
	if path, _ := wire.Field(header, ":path"); path != wire.ProxyMethod {
		return reject(stream, wire.Unimplemented, "this port of the tunnel server serves only "+wire.ProxyMethod)
	}
	release, err := s.trackConnection(s.metrics.frontendStreams)
	if err != nil {
		return nil // the API server receives GOAWAY and can retry with another server
	}
	packets := &tunnel.Packets{Dialer: s.dial, OnPacket: s.metrics.onFrontendPacket, OnEnd: func(error) { release() }}
	packets.Bind(stream)
	var metadata []string
	if half, _ := wire.Field(header, wire.HalfClose); half == wire.HalfCloseYes {
		packets.HalfClose = true
		metadata = []string{wire.HalfClose, wire.HalfCloseYes}
	}
	stream.Header(wire.Response(metadata...), false)
	return packets
}
