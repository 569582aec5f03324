package tunnel

import (
	"errors"
	"fmt"
	"net/url"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// maxReasonBytes is the maximum length of the error message that an agent sends for a failed dial.
const maxReasonBytes = 512

// Stream is the Endpoint of a connection that has its own HTTP/2 stream (CONNECT, RFC 9113, 8.5).
type Stream struct {
	stream *h2.Stream

	mu     sync.Mutex
	peer   Endpoint
	done   func(UnpairedEndpoint, error) // the callback of the dial, until it is called
	cancel func()                        // cancels the dial on the other side, until it is done
	ended  bool                          // the stream has been reset
}

// Connect returns a DialFunc that opens a stream on c for each connection. The other side of c must accept the
// streams with Accept.
func Connect(c *h2.Conn) DialFunc {
	return func(address string, done func(UnpairedEndpoint, error)) (cancel func()) {
		s := &Stream{done: done}
		bind := func(stream *h2.Stream) h2.Receiver {
			s.stream = stream
			return s
		}
		header := []hpack.HeaderField{{Name: ":method", Value: "CONNECT"}, {Name: ":authority", Value: address}}
		if _, err := c.Open(bind, header, false); err != nil {
			s.finishDial(err)
			return func() {}
		}
		return func() {
			if done := s.takeDone(); done != nil {
				s.stream.Reset(http2.ErrCodeCancel)
				done(nil, errCancelled)
			}
		}
	}
}

// takeDone removes and returns the callback of the dial. It returns nil if the callback has been taken.
func (s *Stream) takeDone() func(UnpairedEndpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := s.done
	s.done = nil
	return done
}

// finishDial calls the callback of the dial, unless it has been called.
func (s *Stream) finishDial(err error) {
	switch done := s.takeDone(); {
	case done == nil:
	case err != nil:
		done(nil, err)
	default:
		done(s, nil)
	}
}

// Accept accepts a stream that requests a connection, and dials it. It returns nil if the header is not a
// CONNECT request.
func Accept(stream *h2.Stream, header []hpack.HeaderField, dial DialFunc) h2.Receiver {
	method, _ := wire.Field(header, ":method")
	address, _ := wire.Field(header, ":authority")
	if method != "CONNECT" || address == "" {
		return nil
	}
	s := &Stream{stream: stream}
	cancel := dial(address, s.dialDone)
	s.mu.Lock()
	s.cancel = cancel
	s.mu.Unlock()
	return s
}

func (s *Stream) dialDone(peer UnpairedEndpoint, err error) {
	if err != nil {
		reason := url.PathEscape(err.Error()[:min(len(err.Error()), maxReasonBytes)])
		s.stream.Header([]hpack.HeaderField{{Name: ":status", Value: "502"}, {Name: "error", Value: reason}}, true)
		return
	}
	s.mu.Lock()
	ended := s.ended
	s.peer = peer
	s.mu.Unlock()
	if ended {
		peer.Close(errCancelled)
		return
	}
	s.stream.Header([]hpack.HeaderField{{Name: ":status", Value: "200"}}, false)
	peer.Pair(s)
}

// Header implements h2.Receiver. The first header is the response to the request.
func (s *Stream) Header(_ *h2.Stream, fields []hpack.HeaderField, end bool) {
	status, _ := wire.Field(fields, ":status")
	reason, _ := wire.Field(fields, "error")
	peer := s.currentPeer()
	switch {
	case peer != nil:
		peer.Close(errors.New("unexpected header within a connection"))
	case status == "200" && !end:
		s.finishDial(nil)
		return
	case reason != "":
		if plain, err := url.PathUnescape(reason); err == nil {
			reason = plain
		}
		s.finishDial(errors.New(reason))
	default:
		s.finishDial(fmt.Errorf("agent answered with status %q", status))
	}
	s.stream.Reset(http2.ErrCodeCancel)
}

// Pair implements UnpairedEndpoint.
func (s *Stream) Pair(peer Endpoint) {
	s.mu.Lock()
	s.peer = peer
	s.mu.Unlock()
}

func (s *Stream) currentPeer() Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peer
}

// Data implements h2.Receiver.
func (s *Stream) Data(_ *h2.Stream, b *h2.Buffer, end bool) {
	peer := s.currentPeer()
	if peer == nil { // data before the response violates the protocol
		b.Release()
		s.stream.Reset(http2.ErrCodeProtocol)
		s.Ended(s.stream, http2.StreamError{Code: http2.ErrCodeProtocol})
		return
	}
	if b != nil {
		peer.Send(b)
	}
	if end {
		peer.CloseWrite()
	}
}

// Ended implements h2.Receiver.
func (s *Stream) Ended(_ *h2.Stream, err error) {
	s.mu.Lock()
	s.ended = true
	peer, cancel := s.peer, s.cancel
	s.mu.Unlock()
	var streamErr http2.StreamError
	if errors.As(err, &streamErr) && streamErr.Code == http2.ErrCodeNo {
		err = nil
	}
	switch {
	case peer != nil:
		peer.Close(err)
	case cancel != nil:
		cancel()
	case err == nil:
		err = errLost
		fallthrough
	default:
		s.finishDial(fmt.Errorf("agent connection lost: %w", err))
	}
}

// Send implements Endpoint.
func (s *Stream) Send(b *h2.Buffer) { s.stream.Send(b) }

// CloseWrite implements Endpoint.
func (s *Stream) CloseWrite() { s.stream.End(nil) }

// Close implements Endpoint.
func (s *Stream) Close(err error) {
	switch {
	case err == nil:
		s.stream.Close(nil)
	case abortsNow(err):
		s.stream.Reset(http2.ErrCodeInternal)
	default:
		s.stream.ResetAfterSend(http2.ErrCodeInternal)
	}
}
