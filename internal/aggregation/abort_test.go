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

// counted is a listener that counts its open connections.
type counted struct {
	net.Listener
	open    atomic.Int64
	instead atomic.Value // a func(net.Conn) that Accept calls instead of returning the connection; nil means none
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

// counting starts a server with the handler and TLS configuration of another one, and counts its connections.
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

// usage is the resource usage of the process.
type usage struct {
	goroutines        int
	connections, heap int64
}

func measure(l *counted) usage {
	var memory runtime.MemStats
	debug.SetGCPercent(100)
	for range 2 { // the second collection frees objects that have finalizers or are in pools
		runtime.GC()
	}
	runtime.ReadMemStats(&memory)
	return usage{goroutines: runtime.NumGoroutine(), connections: l.open.Load(), heap: int64(memory.HeapAlloc)}
}

// wantNoLeaks calls do and waits until the resource usage is as before. heap is the number of bytes by which the heap
// may grow.
func (e *env) wantNoLeaks(l *counted, heap int64, do func()) {
	e.Helper()
	before, now := measure(l), usage{}
	until := func(ok func() bool) {
		e.Helper()
		err := wait.PollUntilContextTimeout(e.Context(), 20*time.Millisecond, time.Minute, true,
			func(context.Context) (bool, error) { return ok(), nil })
		if err != nil {
			e.Errorf("resource usage is %+v, was %+v before", now, before)
		}
	}
	do()
	until(func() bool {
		now.connections = l.open.Load()
		return now.connections <= before.connections
	})
	until(func() bool {
		now = measure(l)
		return now.goroutines <= before.goroutines+5 && now.heap <= before.heap+heap
	})
}

// abandon sends a request, and disconnects when the function wait returns. wait receives a reader of the response.
func (e *env) abandon(request string, wait func(*bufio.Reader)) {
	conn, err := net.Dial("tcp", e.served.Listener.Addr().String())
	if err != nil {
		e.Error(err)
		return
	}
	defer conn.Close()
	if _, err := fmt.Fprint(conn, request); err != nil {
		e.Error(err)
	}
	wait(bufio.NewReader(conn))
	_ = conn.(*net.TCPConn).SetLinger(0)
}

// workers is the number of concurrent clients.
const workers = 10

// aborting returns a handler. The last element of a request's path selects the behavior of the handler. It sends to the
// worker's channel in arrived when a request is waiting.
func aborting(arrived *[workers]chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var worker int
		_, _ = fmt.Sscan(r.URL.Query().Get("worker"), &worker)
		switch name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]; name {
		case "hangs":
			arrived[worker] <- struct{}{}
			<-r.Context().Done()
		case "reads":
			arrived[worker] <- struct{}{}
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
			fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n",
				map[bool]string{false: "x", true: "another"}[name == "turns"])
			if name != "leaves" {
				_, _ = io.Copy(io.Discard, both)
			}
		}
	}
}

// TestAborted checks that aborted requests leak no goroutines, connections or memory. It makes 10,000 requests and
// 1,000 upgrades. The client aborts them during the request, before the response or during the response, or the
// backend aborts them. AGG-058
func TestAborted(t *testing.T) {
	var signals [workers]chan struct{}
	for i := range signals {
		signals[i] = make(chan struct{})
	}
	server, ca := extension(t, aborting(&signals))
	arrived := func(worker int, _ *bufio.Reader) { <-signals[worker] }
	begun := func(_ int, in *bufio.Reader) { _, _ = in.ReadString('\n') }
	ended := func(_ int, in *bufio.Reader) { _, _ = io.Copy(io.Discard, in) }
	type kind struct {
		request, rest string
		wait          func(worker int, in *bufio.Reader)
	}
	const upgrade = "Connection: Upgrade\r\nUpgrade: x\r\n\r\n"
	requests := []kind{{"GET hangs", "\r\n", arrived}, {"GET streams", "\r\n", begun},
		{"POST reads", "Content-Length: 1000\r\n\r\nhalf", arrived}, {"GET breaks", "\r\n", ended}}
	upgrades := []kind{{"GET stays", upgrade, begun}, {"GET leaves", upgrade, ended}, {"GET refuses", upgrade, begun},
		{"GET turns", upgrade, begun}}
	for _, c := range []struct {
		name  string
		http2 bool
		n     int
		kinds []kind
	}{
		{"requests", true, 10_000, requests},
		{"requests over HTTP/1.1", false, 1_000, requests}, // each requires a TLS handshake
		{"upgrades", true, 1_000, upgrades},
	} {
		t.Run(c.name, func(t *testing.T) {
			server, l := counting(t, server, c.http2)
			e := newEnv(t)
			e.setEndpoints(nil, server)
			e.register(object.Tree{"caBundle": ca})
			e.awaitReport("available", available)
			do := func(n int) {
				var working sync.WaitGroup
				for worker := range workers {
					working.Go(func() {
						for i := range n / workers {
							k := c.kinds[i%len(c.kinds)]
							request := strings.Replace(k.request, " ", " /apis/wardle.example.com/v1alpha1/", 1)
							request = fmt.Sprintf("%s?watch=1&worker=%d HTTP/1.1\r\nHost: x\r\n%s", request, worker,
								k.rest)
							e.abandon(request, func(in *bufio.Reader) { k.wait(worker, in) })
						}
					})
				}
				working.Wait()
			}
			do(20 * workers)
			e.wantNoLeaks(l, int64(c.n)<<10/2, func() {
				if c.name == "upgrades" { // a garbage collection would hide leaked connections by closing them
					debug.SetGCPercent(-1)
				}
				do(c.n)
			})
		})
	}
}
