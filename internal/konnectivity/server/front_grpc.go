package server

import (
	"errors"
	"net"

	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// frontStreams is how many connections there may be over one of an API server.
const frontStreams = 100_000

// ServeFronts serves API servers, in a mode, until the listener is closed. Its connections are Unix sockets, or TLS that has been agreed
// on or will be.
func (s *Server) ServeFronts(l net.Listener, mode Mode) error {
	if mode == ModeHTTPConnect {
		return s.serveConnect(l)
	}
	return s.listen(l, func(conn net.Conn) {
		c := h2.NewServer(conn, h2.Options{Accept: s.front, MaxStreams: frontStreams})
		if err := s.run(c, s.options.FrontendKeepaliveTime); errors.Is(err, h2.ErrNotHTTP2) {
			s.options.Logger.Warn("a connection to the port for API servers was closed; is its proxyProtocol GRPC, as --mode=grpc needs?", "from", conn.RemoteAddr(), "error", err)
		}
	})
}

// front takes a stream of an API server.
func (s *Server) front(stream *h2.Stream, header []hpack.HeaderField) h2.Receiver {
	f := &front{}
	f.Bind(stream)
	if path, _ := wire.Field(header, ":path"); path != wire.Proxy {
		stream.Header(wire.Refusal(wire.Unimplemented, "this port of the tunnel server serves "+wire.Proxy+" alone"), true)
		return f
	}
	f.Answer, f.Saw = s.dial, s.seen(FromFront, ToFront)
	var metadata []string
	if half, _ := wire.Field(header, wire.HalfClose); half == wire.Yes {
		f.HalfClose = true
		metadata = []string{wire.HalfClose, wire.Yes}
	}
	if err := s.enter(); err != nil {
		stream.Header(wire.Refusal(wire.Unavailable, err.Error()), true)
		return f
	}
	f.Over, f.served = s.leave, true
	stream.Header(wire.Response(metadata...), false)
	return f
}

// seen counts packets, by where they come from or go to.
func (s *Server) seen(from, to Segment) func(wire.Type, bool) {
	return func(t wire.Type, received bool) {
		segment := to
		if received {
			segment = from
		}
		s.options.Metrics.Packet(segment, int(t))
	}
}

// front is a stream of an API server, which is a connection through the tunnel.
type front struct {
	tunnel.Packets
	served bool
}

// Header implements h2.Receiver: there is only the end.
func (f *front) Header(s *h2.Stream, _ []hpack.HeaderField, end bool) {
	if end {
		f.end(s, nil)
	}
}

// Data implements h2.Receiver.
func (f *front) Data(s *h2.Stream, b *h2.Buffer, end bool) {
	if !f.served {
		b.Release()
		return
	}
	if b != nil {
		if err := f.Read(b); err != nil {
			f.Reset(err)
			end = true
		}
	}
	if end {
		f.end(s, nil)
	}
}

// Ended implements h2.Receiver.
func (f *front) Ended(s *h2.Stream, err error) { f.end(s, err) }

func (f *front) end(s *h2.Stream, err error) {
	f.Close(err)
	s.Close(wire.Trailer(wire.OK, ""))
}
