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

// maxReason is how many bytes an agent says at most of why there is no connection.
const maxReason = 512

// Stream is the End of a connection that has a stream of HTTP/2 for itself (CONNECT, RFC 9113, 8.5).
type Stream struct {
	stream *h2.Stream

	mu       sync.Mutex
	other    End
	answered func(Joint, error) // of who asks, until it is told
	cancel   func()             // of who is asked, until it has answered
	gone     bool
}

// Connect is the Dial of who asks over a connection, at whose other end is one that accepts by Accept.
func Connect(c *h2.Conn) Dial {
	return func(address string, answered func(Joint, error)) (cancel func()) {
		s := &Stream{answered: answered}
		bind := func(stream *h2.Stream) h2.Receiver {
			s.stream = stream
			return s
		}
		if _, err := c.Open(bind, []hpack.HeaderField{{Name: ":method", Value: "CONNECT"}, {Name: ":authority", Value: address}}, false); err != nil {
			s.tell(err)
			return func() {}
		}
		return func() {
			if answered := s.asker(); answered != nil {
				s.stream.Reset(http2.ErrCodeCancel)
				answered(nil, errGivenUp)
			}
		}
	}
}

// asker takes who is to be told, once.
func (s *Stream) asker() func(Joint, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answered := s.answered
	s.answered = nil
	return answered
}

// tell tells who has asked.
func (s *Stream) tell(err error) {
	switch answered := s.asker(); {
	case answered == nil:
	case err != nil:
		answered(nil, err)
	default:
		answered(s, nil)
	}
}

// Accept takes a stream that asks for a connection, and dials.
func Accept(stream *h2.Stream, header []hpack.HeaderField, dial Dial) h2.Receiver {
	method, _ := wire.Field(header, ":method")
	address, _ := wire.Field(header, ":authority")
	if method != "CONNECT" || address == "" {
		return nil
	}
	s := &Stream{stream: stream}
	cancel := dial(address, s.dialled)
	s.mu.Lock()
	s.cancel = cancel
	s.mu.Unlock()
	return s
}

func (s *Stream) dialled(other Joint, err error) {
	if err != nil {
		reason := url.PathEscape(err.Error()[:min(len(err.Error()), maxReason)])
		s.stream.Header([]hpack.HeaderField{{Name: ":status", Value: "502"}, {Name: "error", Value: reason}}, true)
		return
	}
	s.mu.Lock()
	gone := s.gone
	s.other = other
	s.mu.Unlock()
	if gone {
		other.Close(errGivenUp)
		return
	}
	s.stream.Header([]hpack.HeaderField{{Name: ":status", Value: "200"}}, false)
	other.Join(s)
}

// Header implements h2.Receiver: the answer.
func (s *Stream) Header(_ *h2.Stream, fields []hpack.HeaderField, end bool) {
	status, _ := wire.Field(fields, ":status")
	reason, _ := wire.Field(fields, "error")
	other := s.joined()
	switch {
	case other != nil:
		other.Close(errors.New("a header in the midst of a connection"))
	case status == "200" && !end:
		s.tell(nil)
		return
	case reason != "":
		if plain, err := url.PathUnescape(reason); err == nil {
			reason = plain
		}
		s.tell(errors.New(reason))
	default:
		s.tell(fmt.Errorf("the agent answers with status %q", status))
	}
	s.stream.Reset(http2.ErrCodeCancel)
}

// Join implements Joint.
func (s *Stream) Join(other End) {
	s.mu.Lock()
	s.other = other
	s.mu.Unlock()
}

func (s *Stream) joined() End {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.other
}

// Data implements h2.Receiver.
func (s *Stream) Data(_ *h2.Stream, b *h2.Buffer, end bool) {
	other := s.joined()
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
	s.gone = true
	other, cancel := s.other, s.cancel
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
		s.tell(fmt.Errorf("the agent is gone: %w", err))
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
	case atOnce(err):
		s.stream.Reset(http2.ErrCodeInternal)
	default:
		s.stream.Break(http2.ErrCodeInternal)
	}
}
