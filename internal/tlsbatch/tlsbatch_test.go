package tlsbatch

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counted counts the writes to a connection.
type counted struct {
	net.Conn
	writes atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// connected returns the two ends of a TCP connection.
func connected(t testing.TB) (here *counted, there net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	there, err = net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Close(), there.Close() })
	return &counted{Conn: c}, there
}

// TestBatchedKeepsTheOrder checks that data written in pieces of any size arrives in order and completely before the
// end.
func TestBatchedKeepsTheOrder(t *testing.T) {
	conn, there := connected(t)
	here := newBatchedConn(conn)
	text := make([]byte, 8<<20)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(text)
	go func() {
		sizes := rand.New(random)
		for rest := text; len(rest) > 0; {
			n := min(len(rest), []int{1, 40, 5000, fullRecord, fullRecord + 22, 3 * batchBytes}[sizes.IntN(6)])
			if _, err := here.Write(rest[:n]); err != nil {
				t.Error(err)
			}
			rest = rest[n:]
		}
		_ = here.SetWriteDeadline(time.Now())
		_ = here.Close()
	}()
	got, err := io.ReadAll(there)
	if err != nil || !bytes.Equal(got, text) {
		t.Errorf("read %d bytes, %v; want all bytes in order", len(got), err)
	}
	if here.pending != nil {
		t.Error("a buffer was not released")
	}
}

// TestBatchedUnderTLS checks a TLS connection that is closed right after a response. The response arrives
// completely, with close_notify. It must take fewer system calls than without batching.
func TestBatchedUnderTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	text := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	const frame = 16<<10 + 9
	respond := func(conn net.Conn, there net.Conn) []byte {
		done := make(chan struct{})
		defer func() { <-done }()
		go func() {
			defer close(done)
			c := tls.Server(conn, server.TLS)
			for rest := text; len(rest) > 0; {
				n := min(len(rest), frame)
				if _, err := c.Write(rest[:n]); err != nil {
					t.Error(err)
					break
				}
				rest = rest[n:]
			}
			_ = c.Close()
		}()
		client := server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
		client.ServerName = "example.com"
		got, err := io.ReadAll(tls.Client(there, client))
		if err != nil {
			t.Error(err)
			_ = there.Close()
		}
		return got
	}
	conn, there := connected(t)
	if got := respond(newBatchedConn(conn), there); !bytes.Equal(got, text) {
		t.Errorf("read %d bytes, want all", len(got))
	}
	plain, there := connected(t)
	respond(plain, there)
	if conn.writes.Load() >= plain.writes.Load() {
		t.Errorf("got %d writes with batching, %d without", conn.writes.Load(), plain.writes.Load())
	}
}

// TestBatchedTimesOut checks that a write to a peer that does not read fails after the deadline, and that the goroutine
// exits.
func TestBatchedTimesOut(t *testing.T) {
	conn, _ := connected(t)
	here := newBatchedConn(conn)
	if err := here.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	piece := make([]byte, fullRecord)
	var err error
	for i := 0; err == nil && i < 1<<16; i++ {
		_, err = here.Write(piece)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if _, again := here.Write([]byte("x")); again != err {
		t.Errorf("small write after the timeout: %v", again)
	}
	if err := here.drain(); err != nil || here.writing || here.pending != nil {
		t.Errorf("drain: %v; data is still pending", err)
	}
}

// TestBatchedWritesTheSmallAtOnce checks that a small write is passed on at once, by the same goroutine.
func TestBatchedWritesTheSmallAtOnce(t *testing.T) {
	conn, _ := connected(t)
	here := newBatchedConn(conn)
	for n := int64(1); n < 10; n++ {
		if _, err := here.Write(make([]byte, 100)); err != nil || conn.writes.Load() != n || here.writing {
			t.Fatalf("%d: %d writes, %v", n, conn.writes.Load(), err)
		}
	}
}

// BenchmarkLargeResponse measures 16 MiB over HTTPS and HTTP/2, including the client.
func BenchmarkLargeResponse(b *testing.B) {
	// Measured on a busy machine: for a list of 56 MB, Trellis needed 112 to 177 ms of processor time. net/http
	// needed 121 to 152 ms for the same bytes from memory. For a document of 5 MB, Trellis needed 13 to 16 ms, and
	// net/http 18 to 24 ms.
	body := make([]byte, 16<<20)
	for name, wrap := range map[string]func(net.Listener) net.Listener{
		"batched": func(l net.Listener) net.Listener { return Listener{Listener: l} },
		"plain":   func(l net.Listener) net.Listener { return l },
	} {
		b.Run(name, func(b *testing.B) {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_,
					_ = w.Write(body)
			}))
			server.EnableHTTP2 = true
			server.Listener = wrap(server.Listener)
			server.StartTLS()
			defer server.Close()
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				resp, err := server.Client().Get(server.URL)
				if err != nil {
					b.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, resp.Body); err != nil || n != int64(len(body)) {
					b.Fatal(n, err)
				}
				_ = resp.Body.Close()
			}
		})
	}
}

// TestCloseWrite checks that one direction of a connection ends after all written data has arrived, however slowly
// the peer reads. A deadline that is set after CloseWrite limits the time.
func TestCloseWrite(t *testing.T) {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	for _, limit := range []time.Duration{0, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe() // without a buffer
			config := server.TLS.Clone()
			config.SessionTicketsDisabled, config.DynamicRecordSizingDisabled = true, true // small writes would block
			here, there := tls.Server(Conn(near), config), tls.Client(far, &tls.Config{InsecureSkipVerify: true})
			text := make([]byte, 64<<10)
			ended := make(chan error, 1)
			go func() {
				if _, err := here.Write(text); err != nil {
					t.Error(err)
				}
				go func() {
					err := cmp.Or(CloseWrite(here), Flush(here))
					if err != nil {
						_ = near.Close()
					}
					ended <- err
				}()
				synctest.Wait()
				if limit > 0 {
					_ = here.SetWriteDeadline(time.Now().Add(limit))
				}
			}()
			if err := there.HandshakeContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Hour)
			got, err := io.ReadAll(there)
			if whole := len(got) == len(text) && err == nil; whole != (limit == 0) {
				t.Errorf("limit %v: %d bytes, %v", limit, len(got), err)
			}
			if err := <-ended; (err == nil) != (limit == 0) {
				t.Errorf("limit %v: %v", limit, err)
			}
			_, _ = here.Close(), there.Close()
		})
	}
}
