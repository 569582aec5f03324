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

// earlyResponder is a destination that sends a response and then resets the connection.
type earlyResponder struct {
	net.Conn
	read     <-chan struct{} // Read blocks until it is closed
	response int             // remaining bytes of the response
	writeErr error           // returned by Write
	deadline atomic.Pointer[time.Time]
}

func (c *earlyResponder) SetReadDeadline(t time.Time) error {
	c.deadline.Store(&t)
	return nil
}

func (c *earlyResponder) Read(p []byte) (int, error) {
	<-c.read
	if deadline := c.deadline.Load(); deadline != nil && time.Now().After(*deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	n := min(c.response, len(p))
	if c.response -= n; n == 0 {
		return 0, syscall.ECONNRESET
	}
	return n, nil
}

func (c *earlyResponder) Write(p []byte) (int, error) { return len(p), c.writeErr }

func closedChannel() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// TestResponseBeforeReset checks a destination that sends a response and then resets the connection. As in TCP,
// the response is delivered completely. The client may read it much later (KON-053).
func TestResponseBeforeReset(t *testing.T) {
	const all = 200 << 10 // larger than the amount that a Socket sends without credit
	dial := func(_ string, answered func(UnpairedEndpoint, error)) func() {
		near, _ := net.Pipe()
		answered(NewSocket(&earlyResponder{Conn: near, read: closedChannel(), response: all}, func() {}), nil)
		return func() {}
	}
	frontends := map[string]func(testing.TB, DialFunc) net.Conn{
		"GRPC": func(t testing.TB, dial DialFunc) net.Conn {
			frontend := &Packets{HalfClose: true, Dialer: dial}
			api, _ := pair(t, func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
				frontend.Bind(s)
				return frontend
			})
			return openPackets(t, api, &Packets{HalfClose: true}).connect(t, "a:1")
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
		"with CONNECT streams": func(t testing.TB) DialFunc {
			server, _ := pair(t, func(s *h2.Stream, header []hpack.HeaderField) h2.Receiver {
				return Accept(s, header, dial)
			})
			return Connect(server)
		},
		"with packets": func(t testing.TB) DialFunc {
			a := &Packets{Shared: true, Dialer: dial}
			server, _ := pair(t, func(s *h2.Stream, _ []hpack.HeaderField) h2.Receiver {
				a.Bind(s)
				return a
			})
			return openPackets(t, server, &Packets{Shared: true}).Dial
		},
	}
	for frontend, open := range frontends {
		for agent, newDialer := range agents {
			t.Run(frontend+", agent "+agent, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					conn := open(t, newDialer(t))
					synctest.Wait() // wait until all data is received or blocked
					n, err := io.Copy(io.Discard, conn)
					if n != all || frontend == "GRPC" && err == nil {
						t.Errorf("received %d of %d bytes, error %v", n, all, err)
					}
					_ = conn.Close()
				})
			})
		}
	}
}

// openPackets opens a stream, binds p to it and returns p.
func openPackets(t testing.TB, c *h2.Conn, p *Packets) *Packets {
	_, err := c.Open(func(s *h2.Stream) h2.Receiver {
		p.Bind(s)
		return p
	}, wire.Request(wire.ProxyMethod, "test", false), false)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// recorder is an Endpoint that records the number of bytes and the error of Close.
type recorder struct {
	mu    sync.Mutex
	bytes int
	err   error
}

func (e *recorder) CloseWrite() {}
func (e *recorder) Send(b *h2.Buffer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bytes += b.Len()
	b.Release()
}
func (e *recorder) Close(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

// TestResponseBeforeWriteError checks that a response is delivered even if writing to the destination fails
// (KON-053).
func TestResponseBeforeWriteError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, got, closeCalls := make(chan struct{}), &recorder{}, 0
		near, _ := net.Pipe()
		s := NewSocket(&earlyResponder{Conn: near, read: read, response: 100, writeErr: syscall.EPIPE},
			func() { closeCalls++ })
		s.Pair(got)
		for range 3 {
			s.Send(h2.NewBuffer(100))
		}
		synctest.Wait()
		if got.err != nil || closeCalls > 0 {
			t.Error("the connection has ended before the response was read:", got.err)
		}
		close(read)
		synctest.Wait()
		if got.bytes != 100 || got.err != syscall.EPIPE || closeCalls != 1 {
			t.Errorf("read %d of 100 bytes, error %v; closed %d times, want 1", got.bytes, got.err, closeCalls)
		}
	})
}

// slowRecorder is a recorder whose reader releases 64 KiB every 10 seconds.
type slowRecorder struct {
	recorder
	arrived chan *h2.Buffer
}

func (e *slowRecorder) Send(b *h2.Buffer) {
	e.mu.Lock()
	e.bytes += b.Len()
	e.mu.Unlock()
	e.arrived <- b
}

func (e *slowRecorder) read() {
	for b := range e.arrived {
		<-time.After(10 * time.Second * time.Duration(b.Len()) / (64 << 10))
		b.Release()
	}
}

// TestSlowResponseBeforeWriteError checks that a slow reader receives the whole response after a write to the
// destination has failed, as long as it makes progress (KON-044, KON-053).
func TestSlowResponseBeforeWriteError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const all = 600 << 10 // takes longer than lingerTimeout, even with the windows
		got := &slowRecorder{arrived: make(chan *h2.Buffer, all/minRead)}
		near, _ := net.Pipe()
		ended := make(chan struct{})
		s := NewSocket(&earlyResponder{Conn: near, read: closedChannel(), response: all, writeErr: syscall.EPIPE},
			func() { close(ended) })
		s.Pair(got)
		var reading sync.WaitGroup
		defer reading.Wait()
		defer close(got.arrived)
		reading.Go(got.read)
		s.Send(h2.NewBuffer(100))
		<-ended
		if got.bytes != all || got.err != syscall.EPIPE {
			t.Errorf("received %d of %d bytes, error %v", got.bytes, all, got.err)
		}
	})
}

// tlsSocket returns a Socket of a TLS connection, and the client side of that connection.
func tlsSocket(t *testing.T) (s *Socket, client *tls.Conn) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS() // only for its TLS configuration
	config := certificate.TLS
	config.DynamicRecordSizingDisabled = true // otherwise the first records are too small for tlsbatch to batch
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

// TestCloseOverTLS checks that all data, and the close_notify alert, arrive after a TLS connection is closed.
// crypto/tls itself waits only 5 seconds for the alert. Close must not block, because the goroutine of an
// agent calls it (KON-044).
func TestCloseOverTLS(t *testing.T) {
	for name, end := range map[string]func(*Socket){
		"closed":                  func(s *Socket) { s.Close(nil) },
		"closed after CloseWrite": func(s *Socket) { s.CloseWrite(); s.Close(nil) },
		"closed with an error":    func(s *Socket) { s.Close(os.ErrDeadlineExceeded) },
	} {
		for pieces := range 30 {
			synctest.Test(t, func(t *testing.T) {
				s, client := tlsSocket(t)
				s.Pair(&countingEndpoint{})
				all := int64(pieces * 16 << 10)
				for range pieces {
					s.Send(h2.NewBuffer(16 << 10))
				}
				synctest.Wait()
				began := time.Now()
				if end(s); time.Since(began) > 0 {
					t.Errorf("%s with %d bytes: Close blocks for %v", name, all, time.Since(began))
				}
				<-time.After(2 * 5 * time.Second)
				n, err := io.Copy(io.Discard, client)
				if n != all || err != nil {
					t.Errorf("%s: received %d of %d bytes, error %v", name, n, all, err)
				}
			})
		}
	}
}
