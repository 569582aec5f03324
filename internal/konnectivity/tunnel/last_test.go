package tunnel

import (
	"crypto/tls"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
	"github.com/trellis-k8s/trellis/internal/tlsbatch"
)

// answersEarly is a destination that answers, and then breaks the connection off.
type answersEarly struct {
	net.Conn
	read   <-chan struct{} // before it is not read
	answer int
	takes  error // of what is written
	late   atomic.Pointer[time.Time]
}

func (c *answersEarly) SetReadDeadline(t time.Time) error {
	c.late.Store(&t)
	return nil
}

func (c *answersEarly) Read(p []byte) (int, error) {
	<-c.read
	if late := c.late.Load(); late != nil && time.Now().After(*late) {
		return 0, os.ErrDeadlineExceeded
	}
	n := min(c.answer, len(p))
	if c.answer -= n; n == 0 {
		return 0, syscall.ECONNRESET
	}
	return n, nil
}

func (c *answersEarly) Write(p []byte) (int, error) { return len(p), c.takes }

func closed() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// A destination that has answered before it breaks off has said something, however late that is read: as with TCP.
//
// KON-053
func TestAnswerBeforeReset(t *testing.T) {
	const all = 200 << 10 // more than goes out by itself
	dial := func(_ string, answered func(UnpairedEndpoint, error)) func() {
		near, _ := net.Pipe()
		answered(NewSocket(&answersEarly{Conn: near, read: closed(), answer: all}, func() {}), nil)
		return func() {}
	}
	fronts := map[string]func(testing.TB, DialFunc) net.Conn{
		"GRPC": func(t testing.TB, dial DialFunc) net.Conn {
			f := &Packets{HalfClose: true, Dialer: dial}
			api, _ := pair(t, func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
				f.Bind(s)
				return f
			})
			return stream(t, api, &Packets{HalfClose: true}).connect(t, "a:1")
		},
		"CONNECT": func(t testing.TB, dial DialFunc) net.Conn {
			api, server := net.Pipe()
			dial("a:1", func(other UnpairedEndpoint, err error) {
				if err != nil {
					t.Error(err)
					return
				}
				s := NewSocket(server, func() {})
				other.Pair(s)
				s.Pair(other)
			})
			return api
		},
	}
	agents := map[string]func(testing.TB) DialFunc{
		"by streams": func(t testing.TB) DialFunc {
			server, _ := pair(t, func(s *h2.Stream, header []hpack.HeaderField) h2.Receiver { return Accept(s, header, dial) })
			return Connect(server)
		},
		"by packets": func(t testing.TB) DialFunc {
			a := &Packets{Shared: true, Dialer: dial}
			server, _ := pair(t, func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
				a.Bind(s)
				return a
			})
			return stream(t, server, &Packets{Shared: true}).Dial
		},
	}
	for front, open := range fronts {
		for agent, dials := range agents {
			t.Run(front+", agent "+agent, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					conn := open(t, dials(t))
					synctest.Wait() // until nothing moves without a reader
					n, err := io.Copy(io.Discard, conn)
					if n != all || front == "GRPC" && err == nil {
						t.Errorf("%d bytes of %d have arrived, and then %v", n, all, err)
					}
					_ = conn.Close()
				})
			})
		}
	}
}

// stream opens a stream of packets, and returns them.
func stream(t testing.TB, c *h2.Conn, p *Packets) *Packets {
	_, err := c.Open(func(s *h2.Stream) h2.Receiver {
		p.Bind(s)
		return p
	}, wire.Request(wire.ProxyMethod, "test", false), false)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// told is an End that keeps what it is told.
type told struct {
	mu    sync.Mutex
	bytes int
	err   error
}

func (e *told) CloseWrite() {}
func (e *told) Send(b *h2.Buffer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bytes += b.Len()
	b.Release()
}
func (e *told) Close(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

// So it is where the destination takes no more of what it has answered.
//
// KON-053
func TestAnswerBeforeWriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, got, closings := make(chan struct{}), &told{}, 0
		near, _ := net.Pipe()
		s := NewSocket(&answersEarly{Conn: near, read: read, answer: 100, takes: syscall.EPIPE}, func() { closings++ })
		s.Pair(got)
		for range 3 {
			s.Send(h2.NewBuffer(100))
		}
		synctest.Wait()
		if got.err != nil || closings > 0 {
			t.Error("the connection has ended before all was read:", got.err)
		}
		close(read)
		synctest.Wait()
		if got.bytes != 100 || got.err != syscall.EPIPE || closings != 1 {
			t.Errorf("%d bytes of 100 were read, then %v; it was closed %d times", got.bytes, got.err, closings)
		}
	})
}

// slowTold lets what it is told through by 64 KiB each 10 seconds.
type slowTold struct {
	told
	arrived chan *h2.Buffer
}

func (e *slowTold) Send(b *h2.Buffer) {
	e.mu.Lock()
	e.bytes += b.Len()
	e.mu.Unlock()
	e.arrived <- b
}

func (e *slowTold) read() {
	for b := range e.arrived {
		<-time.After(10 * time.Second * time.Duration(b.Len()) / (64 << 10))
		b.Release()
	}
}

// However slowly such an answer is read, all of it arrives: as long as it moves on.
//
// KON-044, KON-053
func TestSlowAnswerBeforeWriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const all = 600 << 10 // with its windows, more than moves on in linger
		got := &slowTold{arrived: make(chan *h2.Buffer, all/minRead)}
		near, _ := net.Pipe()
		ended := make(chan struct{})
		s := NewSocket(&answersEarly{Conn: near, read: closed(), answer: all, takes: syscall.EPIPE}, func() { close(ended) })
		s.Pair(got)
		var reading sync.WaitGroup
		defer reading.Wait()
		defer close(got.arrived)
		reading.Go(got.read)
		s.Send(h2.NewBuffer(100))
		<-ended
		if got.bytes != all || got.err != syscall.EPIPE {
			t.Errorf("%d bytes of %d have arrived, and then %v", got.bytes, all, got.err)
		}
	})
}

// secured returns the End of a connection over TLS, and its other side.
func secured(t *testing.T) (s *Socket, client *tls.Conn) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS() // for its configuration alone
	config := certificate.TLS
	config.DynamicRecordSizingDisabled = true // else the first records are small, and none is gathered
	certificate.Close()
	near, far := net.Pipe()
	server := tls.Server(tlsbatch.Conn(near), config)
	client = tls.Client(far, &tls.Config{InsecureSkipVerify: true})
	go func() { _ = server.Handshake() }()
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = near.Close() })
	return NewSocket(server, func() {}), client
}

// Over TLS what was sent arrives as well when the connection is closed, to the good-bye, though TLS itself waits no longer than 5
// seconds. Nobody waits for it: it is an agent's goroutine that closes it.
//
// KON-044
func TestCloseOverTLS(t *testing.T) {
	for name, end := range map[string]func(*Socket){
		"closed":            func(s *Socket) { s.Close(nil) },
		"ended, and closed": func(s *Socket) { s.CloseWrite(); s.Close(nil) },
		"broken off":        func(s *Socket) { s.Close(os.ErrDeadlineExceeded) },
	} {
		for pieces := range 30 {
			synctest.Test(t, func(t *testing.T) {
				s, client := secured(t)
				s.Pair(&counted{})
				all := int64(pieces * 16 << 10)
				for range pieces {
					s.Send(h2.NewBuffer(16 << 10))
				}
				synctest.Wait()
				began := time.Now()
				if end(s); time.Since(began) > 0 {
					t.Errorf("%s with %d bytes: waits for %v", name, all, time.Since(began))
				}
				<-time.After(2 * 5 * time.Second)
				n, err := io.Copy(io.Discard, client)
				if n != all || err != nil {
					t.Errorf("%s: %d bytes of %d have arrived, and then %v", name, n, all, err)
				}
			})
		}
	}
}
