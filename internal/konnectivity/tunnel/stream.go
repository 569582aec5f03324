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

// maxReasonBytes is how many bytes an agent says at most of why there is no connection.
const maxReasonBytes = 512

// Stream is the End of a connection that has a stream of HTTP/2 for itself (CONNECT, RFC 9113, 8.5).
type Stream struct {
	stream *h2.Stream

	mu     sync.Mutex
	peer   Endpoint
	done   func(UnpairedEndpoint, error) // of who asks, until it is told
	cancel func()                        // of who is asked, until it has answered
	ended  bool
}

// Connect is the Dial of who asks over a connection, at whose other end is one that accepts by Accept.
func Connect(c *h2.Conn) DialFunc {
	return func(address string, answered func(UnpairedEndpoint, error)) (cancel func()) {
		s := &Stream{done: answered}
		bind := func(stream *h2.Stream) h2.Receiver {
			s.stream = stream
			return s
		}
		if _, err := c.Open(bind, []hpack.HeaderField{{Name: ":method", Value: "CONNECT"}, {Name: ":authority", Value: address}}, false); err != nil {
			s.finishDial(err)
			return func() {}
		}
		return func() {
			if answered := s.takeDone(); answered != nil {
				s.stream.Reset(http2.ErrCodeCancel)
				answered(nil, errCancelled)
			}
		}
	}
}

// takeDone takes who is to be told, once.
func (s *Stream) takeDone() func(UnpairedEndpoint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answered := s.done
	s.done = nil
	return answered
}

// finishDial tells who has asked.
func (s *Stream) finishDial(err error) {
	switch answered := s.takeDone(); {
	case answered == nil:
	case err != nil:
		answered(nil, err)
	default:
		answered(s, nil)
	}
}

// Accept takes a stream that asks for a connection, and dials.
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

func (s *Stream) dialDone(other UnpairedEndpoint, err error) {
	if err != nil {
		reason := url.PathEscape(err.Error()[:min(len(err.Error()), maxReasonBytes)])
		s.stream.Header([]hpack.HeaderField{{Name: ":status", Value: "502"}, {Name: "error", Value: reason}}, true)
		return
	}
	s.mu.Lock()
	gone := s.ended
	s.peer = other
	s.mu.Unlock()
	if gone {
		other.Close(errCancelled)
		return
	}
	s.stream.Header([]hpack.HeaderField{{Name: ":status", Value: "200"}}, false)
	other.Pair(s)
}

// Header implements h2.Receiver: the answer.
func (s *Stream) Header(_ *h2.Stream, fields []hpack.HeaderField, end bool) {
	status, _ := wire.Field(fields, ":status")
	reason, _ := wire.Field(fields, "error")
	other := s.currentPeer()
	switch {
	case other != nil:
		other.Close(errors.New("a header in the midst of a connection"))
	case status == "200" && !end:
		s.finishDial(nil)
		return
	case reason != "":
		if plain, err := url.PathUnescape(reason); err == nil {
			reason = plain
		}
		s.finishDial(errors.New(reason))
	default:
		s.finishDial(fmt.Errorf("the agent answers with status %q", status))
	}
	s.stream.Reset(http2.ErrCodeCancel)
}

// Pair implements Joint.
func (s *Stream) Pair(other Endpoint) {
	s.mu.Lock()
	s.peer = other
	s.mu.Unlock()
}

func (s *Stream) currentPeer() Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peer
}

// Data implements h2.Receiver.
func (s *Stream) Data(_ *h2.Stream, b *h2.Buffer, end bool) {
	other := s.currentPeer()
	if other == nil { // nothing may come before the answer
		b.Release()
		s.stream.Reset(http2.ErrCodeProtocol)
		s.Ended(s.stream, http2.StreamError{Code: http2.ErrCodeProtocol})
		return
	}
	if b != nil {
		other.Send(b)
	}
	if end {
		other.CloseWrite()
	}
}

// Ended implements h2.Receiver.
func (s *Stream) Ended(_ *h2.Stream, err error) {
	s.mu.Lock()
	s.ended = true
	other, cancel := s.peer, s.cancel
	s.mu.Unlock()
	var code http2.StreamError
	if errors.As(err, &code) && code.Code == http2.ErrCodeNo {
		err = nil
	}
	switch {
	case other != nil:
		other.Close(err)
	case cancel != nil:
		cancel()
	case err == nil:
		err = errLost
		fallthrough
	default:
		s.finishDial(fmt.Errorf("the agent is gone: %w", err))
	}
}

// Send implements End.
func (s *Stream) Send(b *h2.Buffer) { s.stream.Send(b) }

// CloseWrite implements End.
func (s *Stream) CloseWrite() { s.stream.End(nil) }

// Close implements End.
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
