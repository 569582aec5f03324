package aggregation_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/trellis-k8s/trellis/internal/object"
)

// counted is a listener that knows how many of its connections are open.
type counted struct {
	net.Listener
	open    atomic.Int64
	instead atomic.Value // unless nil, a func(net.Conn) that gets the connections in place of who listens
}

type countedConn struct {
	net.Conn
	of   *counted
	once sync.Once
}

func (l *counted) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		l.open.Add(1)
		conn = &countedConn{Conn: conn, of: l}
		do, ok := l.instead.Load().(func(net.Conn))
		if !ok {
			return conn, nil
		}
		go do(conn)
	}
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.of.open.Add(-1) })
	return c.Conn.Close()
}

// counting has a server like another one, with that its connections are counted.
func counting(t *testing.T, like *httptest.Server, http2 bool) (*httptest.Server, *counted) {
	t.Helper()
	s := httptest.NewUnstartedServer(like.Config.Handler)
	l := &counted{Listener: s.Listener}
	s.Listener, s.TLS, s.EnableHTTP2 = l, like.TLS.Clone(), http2
	if !http2 {
		s.TLS.NextProtos = nil
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, l
}

// held is what a server has in its hands.
type held struct {
	goroutines        int
	connections, heap int64
}

func hold(l *counted) held {
	var memory runtime.MemStats
	debug.SetGCPercent(100)
	for range 2 { // what finalizers and pools let go of
		runtime.GC()
	}
	runtime.ReadMemStats(&memory)
	return held{goroutines: runtime.NumGoroutine(), connections: l.open.Load(), heap: int64(memory.HeapAlloc)}
}

// settles waits until there is no more than there was before do, but for so many bytes.
func (w *world) settles(l *counted, heap int64, do func()) {
	w.Helper()
	before, now := hold(l), held{}
	until := func(ok func() bool) {
		w.Helper()
		err := wait.PollUntilContextTimeout(w.Context(), 20*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) { return ok(), nil })
		if err != nil {
			w.Errorf("%+v, before %+v", now, before)
		}
	}
	do()
	until(func() bool {
		now.connections = l.open.Load()
		return now.connections <= before.connections
	})
	until(func() bool {
		now = hold(l)
		return now.goroutines <= before.goroutines+5 && now.heap <= before.heap+heap
	})
}

// abandon sends a request, and goes away when gone says so, which is given what comes back.
func (w *world) abandon(request string, gone func(*bufio.Reader)) {
	conn, err := net.Dial("tcp", w.served.Listener.Addr().String())
	if err != nil {
		w.Error(err)
		return
	}
	defer conn.Close()
	if _, err := fmt.Fprint(conn, request); err != nil {
		w.Error(err)
	}
	gone(bufio.NewReader(conn))
	_ = conn.(*net.TCPConn).SetLinger(0)
}

// workers ask at the same time.
const workers = 10

// aborting does to a request what the end of its path says. came is told of those that are to wait, worker by worker.
func aborting(came *[workers]chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var worker int
		_, _ = fmt.Sscan(r.URL.Query().Get("worker"), &worker)
		switch name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]; name {
		case "hangs":
			came[worker] <- struct{}{}
			<-r.Context().Done()
		case "reads":
			came[worker] <- struct{}{}
			_, _ = io.Copy(io.Discard, r.Body)
		case "streams", "breaks":
			fmt.Fprintln(w, "a line")
			w.(http.Flusher).Flush()
			if name == "breaks" {
				panic(http.ErrAbortHandler)
			}
			<-r.Context().Done()
		case "refuses":
			http.Error(w, "no", http.StatusForbidden)
		default:
			conn, both, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", map[bool]string{false: "x", true: "another"}[name == "turns"])
			if name != "leaves" {
				_, _ = io.Copy(io.Discard, both)
			}
		}
	}
}

// TestAborted: AGG-058. After 10,000 requests and 1,000 upgrades of clients that go away before the answer, within it, or within the
// request, and of backends that do, there are as many goroutines and connections as before, and as much memory.
func TestAborted(t *testing.T) {
	var came [workers]chan struct{}
	for i := range came {
		came[i] = make(chan struct{})
	}
	server, ca := extension(t, aborting(&came))
	arrived := func(worker int, _ *bufio.Reader) { <-came[worker] }
	begun := func(_ int, in *bufio.Reader) { _, _ = in.ReadString('\n') }
	ended := func(_ int, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) }
	type kind struct {
		request, rest string
		gone          func(worker int, in *bufio.Reader)
	}
	const upgrade = "Connection: Upgrade\r\nUpgrade: x\r\n\r\n"
	requests := []kind{{"GET hangs", "\r\n", arrived}, {"GET streams", "\r\n", begun}, {"POST reads", "Content-Length: 1000\r\n\r\nhalf", arrived}, {"GET breaks", "\r\n", ended}}
	upgrades := []kind{{"GET stays", upgrade, begun}, {"GET leaves", upgrade, ended}, {"GET refuses", upgrade, begun}, {"GET turns", upgrade, begun}}
	for _, c := range []struct {
		name  string
		http2 bool
		n     int
		kinds []kind
	}{
		{"requests", true, 10_000, requests},
		{"requests of HTTP/1.1", false, 1_000, requests}, // each is a handshake
		{"upgrades", true, 1_000, upgrades},
	} {
		t.Run(c.name, func(t *testing.T) {
			server, l := counting(t, server, c.http2)
			w := newWorld(t)
			w.at(nil, server)
			w.register(object.Tree{"caBundle": ca})
			w.until("available", available)
			do := func(n int) {
				var working sync.WaitGroup
				for worker := range workers {
					working.Go(func() {
						for i := range n / workers {
							k := c.kinds[i%len(c.kinds)]
							request := strings.Replace(k.request, " ", " /apis/wardle.example.com/v1alpha1/", 1)
							request = fmt.Sprintf("%s?watch=1&worker=%d HTTP/1.1\r\nHost: x\r\n%s", request, worker, k.rest)
							w.abandon(request, func(in *bufio.Reader) { k.gone(worker, in) })
						}
					})
				}
				working.Wait()
			}
			do(20 * workers)
			w.settles(l, int64(c.n)<<10/2, func() {
				if c.name == "upgrades" { // whose connections no goroutine holds: lost ones would be collected, and closed by that
					debug.SetGCPercent(-1)
				}
				do(c.n)
			})
		})
	}
}
