package konnectivity_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/agent"
	"github.com/trellis-k8s/trellis/internal/konnectivity/client"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
)

// relay is a link that can be cut, by the test or after a number of bytes in one direction.
type relay struct {
	net.Listener
	network, to    string
	down           bool         // counts the bytes to the client of the relay; if false, those from it
	remaining      atomic.Int64 // bytes until the link is cut
	silent         atomic.Bool  // forwards nothing, but stays open
	resume         chan bool    // closed to forward the data received while silent; nil means that it is lost
	accepted, open atomic.Int64 // connections

	mu      sync.Mutex
	conns   map[net.Conn]bool
	cutDone chan struct{} // closed when the link is cut
}

func newRelay(t testing.TB, network, to string, cutAfter int64, down bool) *relay {
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "relay")
	}
	r := &relay{Listener: listen(t, network, address), network: network, to: to, down: down, conns: map[net.Conn]bool{},
		cutDone: make(chan struct{})}
	r.remaining.Store(cutAfter)
	go serveOn(r, r.link)
	return r
}

func (r *relay) link(c net.Conn) {
	to, err := net.Dial(r.network, r.to)
	if err != nil {
		_ = c.Close()
		return
	}
	if !r.register(c, to) {
		_, _ = c.Close(), to.Close()
		return
	}
	r.accepted.Add(1)
	r.open.Add(1)
	defer r.open.Add(-1)
	var both sync.WaitGroup
	both.Go(func() { r.copy(to, c, !r.down) })
	both.Go(func() { r.copy(c, to, r.down) })
	both.Wait()
	_ = c.Close()
	_ = to.Close()
}

// register makes cut close connections. It returns false if the relay has been cut.
func (r *relay) register(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conns == nil {
		return false
	}
	for _, c := range conns {
		r.conns[c] = true
	}
	return true
}

func (r *relay) copy(to, from net.Conn, counted bool) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			_ = to.(interface{ CloseWrite() error }).CloseWrite()
			return
		}
		if r.silent.Load() {
			select {
			case <-r.cutDone:
				return
			case <-r.resume:
			}
		}
		if counted {
			if left := r.remaining.Add(-int64(n)); left < 0 {
				_, _ = to.Write(buf[:max(0, int64(n)+left)])
				r.cut()
				return
			}
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func (r *relay) closed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conns == nil
}

// cut closes all connections and the listener.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
	if r.conns != nil {
		close(r.cutDone)
	}
	r.conns = nil
	_ = r.Close()
}

const neverCut = 1 << 60

// rig is a tunnel whose links can be cut, with a destination that echoes.
type rig struct {
	*tunnelServer
	dial            dialer
	frontend, agent *relay
	destination     net.Listener
	echo            string
	open            atomic.Int64 // connections at the destination
	client          *client.Client
	session         *agent.Session
}

func newRig(t testing.TB, p *pki, keepalive time.Duration, frontendCut, agentCut int64, down bool) (*rig, error) {
	r := &rig{}
	s := server.New(server.Options{ID: "s", Count: 1, KeepaliveTime: keepalive, FrontendKeepaliveTime: keepalive,
		Strategies: []server.Strategy{server.Default}, Logger: slog.New(slog.DiscardHandler)})
	agents := listen(t, "tcp", "127.0.0.1:0")
	go func() { _ = s.ServeAgents(tls.NewListener(agents, p.server)) }()
	frontends := listen(t, "unix", filepath.Join(t.TempDir(), "sock"))
	go func() { _ = s.ServeFrontends(frontends, server.ModeGRPC) }()
	r.tunnelServer = &tunnelServer{trellis: s}
	r.agent = newRelay(t, "tcp", agents.Addr().String(), agentCut, down)
	r.frontend = newRelay(t, "unix", frontends.Addr().String(), frontendCut, down)
	r.client = client.New(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.frontend.Addr().String())
	})
	r.dial = func(ctx context.Context, address string) (net.Conn, error) {
		return r.client.DialContext(ctx, "tcp", address)
	}
	r.destination = listen(t, "tcp", "127.0.0.1:0")
	r.echo = r.destination.Addr().String()
	go serveOn(r.destination, func(c net.Conn) {
		r.open.Add(1)
		_, _ = io.Copy(c, c)
		_ = c.Close()
		r.open.Add(-1)
	})
	var err error
	r.session, err = agent.Connect(t.Context(), r.agent.Addr().String(),
		agent.Options{ID: "a", TLS: p.agent, KeepaliveTime: keepalive,
			Dial: (&net.Dialer{}).DialContext, Metrics: agent.NewMetrics()})
	if err != nil {
		return r, err
	}
	waitFor(t, "the server has the agent", func() bool { return s.Ready() || r.agent.closed() })
	return r, nil
}

// end closes everything that is still open.
func (r *rig) end() {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	r.trellis.Shutdown(canceled)
	r.client.Close()
	if r.session != nil {
		r.session.Close()
	}
	r.frontend.cut()
	r.agent.cut()
	_ = r.destination.Close()
}

// echoOnce sends data through a new connection and reads the echo.
func (r *rig) echoOnce(ctx context.Context) error {
	conn, err := r.dial(ctx, r.echo)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testTimeout))
	if _, err := conn.Write(make([]byte, 100)); err != nil {
		return err
	}
	if err = conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	if n, err := io.Copy(io.Discard, conn); n != 100 || err != nil {
		return fmt.Errorf("received %d of 100 bytes: %w", n, err)
	}
	return nil
}

// leakCheck counts the goroutines, files and heap bytes of the process. The returned function waits until the
// counts are about the same again.
func leakCheck(t testing.TB) func() {
	files := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(all)
	}
	warmGoroutines()
	goroutines, descriptors, heap := runtime.NumGoroutine(), files(), liveHeap()
	return func() {
		t.Helper()
		limit := time.After(testTimeout)
		// The garbage collection in liveHeap comes first: it closes the pipes that io.Copy keeps for splice.
		for liveHeap() > heap+heapTolerance || runtime.NumGoroutine() > goroutines+2 || files() > descriptors+2 {
			select {
			case <-limit:
				stacks := make([]byte, 1<<20)
				t.Fatalf("%d goroutines, before %d; %d files, before %d; %d bytes, before %d\n%s",
					runtime.NumGoroutine(), goroutines, files(), descriptors,
					liveHeap(), heap, stacks[:runtime.Stack(stacks, true)])
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// warmGoroutines starts and ends more goroutines than any test does. The Go runtime keeps the memory of ended
// goroutines, so that later tests do not add to the heap.
var warmGoroutines = sync.OnceFunc(func() {
	var all sync.WaitGroup
	end := make(chan struct{})
	for range 5000 {
		all.Go(func() { <-end })
	}
	close(end)
	all.Wait()
})

// heapTolerance is the accepted growth of the heap. A thousand connections use more memory.
const heapTolerance = 1 << 20

// liveHeap returns the number of bytes in use, after two garbage collections that also empty pools.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestCutAnywhere cuts a link within and between all packets. It checks that the connection ends with an
// error, and that no goroutine, file or connection to the destination is left (KON-053, KON-054).
func TestCutAnywhere(t *testing.T) {
	p := newPKI(t)
	step, limit := 37, 1200
	if testing.Short() {
		step *= 10
	}
	for _, down := range []bool{false, true} {
		for _, link := range []string{"frontend", "agent"} {
			t.Run(fmt.Sprintf("%s, down=%v", link, down), func(t *testing.T) {
				noLeaks := leakCheck(t)
				passed, failed := 0, 0
				for after := 0; after < limit; after += step {
					frontendCut, agentCut := int64(neverCut), int64(neverCut)
					if link == "frontend" {
						frontendCut = int64(after)
					} else {
						agentCut = int64(3 * after) // a TLS handshake comes first
					}
					r, err := newRig(t, p, time.Minute, frontendCut, agentCut, down)
					if err == nil {
						ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
						err = r.echoOnce(ctx)
						if cancel(); ctx.Err() == context.DeadlineExceeded {
							t.Fatalf("cut after %d bytes: the connection has not ended", after)
						}
					}
					if err == nil {
						passed++
					} else {
						failed++
					}
					waitFor(t, "the destination's connection ends", func() bool { return r.open.Load() == 0 })
					r.end()
				}
				noLeaks()
				t.Logf("%d passed, %d failed", passed, failed)
				if failed == 0 {
					t.Error("no connection failed")
				}
			})
		}
	}
}

// TestSilentLink checks that both sides detect a link that is silent but not closed, and end its connections
// (KON-053).
func TestSilentLink(t *testing.T) {
	noLeaks := leakCheck(t)
	p := newPKI(t)
	r, err := newRig(t, p, 100*time.Millisecond, neverCut, neverCut, false)
	must(t, err)
	conn := mustDial(t, r.dial, r.echo)
	waitFor(t, "the destination is connected", func() bool { return r.open.Load() == 1 })
	r.agent.silent.Store(true)
	_ = conn.SetReadDeadline(time.Now().Add(testTimeout))
	if _, err := conn.Read(make([]byte, 1)); err == nil || err == io.EOF || os.IsTimeout(err) {
		t.Errorf("the connection ends with %v, want an error", err)
	}
	if r.session.Wait() == nil {
		t.Error("Wait returns nil for a silent link")
	}
	waitFor(t, "the server has no agent", func() bool { return !r.trellis.Ready() })
	waitFor(t, "the destination's connection ends", func() bool { return r.open.Load() == 0 })
	_ = conn.Close()
	r.end()
	noLeaks()
}

// TestShutdownWithManyConnections checks that a server which shuts down without a grace period ends all its
// connections at once (KON-053).
func TestShutdownWithManyConnections(t *testing.T) {
	noLeaks := leakCheck(t)
	p := newPKI(t)
	r, err := newRig(t, p, time.Minute, neverCut, neverCut, false)
	must(t, err)
	conns := make([]net.Conn, 1000)
	for i := range conns {
		conns[i] = mustDial(t, r.dial, r.echo)
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	r.trellis.Shutdown(canceled)
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(testTimeout))
		if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Fatalf("a connection ends with %v, want an error", err)
		}
		_ = c.Close()
	}
	waitFor(t, "the destination's connections end", func() bool { return r.open.Load() == 0 })
	r.end()
	noLeaks()
}

// TestAgentsThatFlap checks that dials succeed while agents connect and disconnect. An agent that disconnects
// breaks at most one connection of the load, and gets no further dials (KON-055).
func TestAgentsThatFlap(t *testing.T) {
	noLeaks := leakCheck(t)
	p := newPKI(t)
	r, err := newRig(t, p, time.Minute, neverCut, neverCut, false)
	must(t, err)
	stop := make(chan struct{})
	var all sync.WaitGroup
	var left, served atomic.Int64
	for i := range 3 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				s, err := agent.Connect(context.Background(), r.agent.Addr().String(),
					agent.Options{ID: fmt.Sprint("flaps ", i), TLS: p.agent, KeepaliveTime: time.Minute,
						Metrics: agent.NewMetrics(),
						Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
							served.Add(1)
							return (&net.Dialer{}).DialContext(ctx, network, address)
						}})
				if err == nil {
					_ = r.echoOnce(t.Context())
					left.Add(1)
					s.Close()
					_ = s.Wait()
				}
			}
		})
	}
	passed, failed := 0, int64(0)
	for passed < 100 || left.Load() < 50 || served.Load() < 20 {
		if r.echoOnce(t.Context()) == nil {
			passed++
		} else if failed++; failed > left.Load() {
			t.Fatalf("%d of %d dials failed, but only %d agents have disconnected", failed, failed+int64(passed),
				left.Load())
		}
	}
	close(stop)
	all.Wait()
	t.Logf("%d dials passed, %d failed; %d agents disconnected after %d dials", passed, failed, left.Load(),
		served.Load())
	waitFor(t, "the remaining agent is used", func() bool { return r.echoOnce(t.Context()) == nil })
	waitFor(t, "the destination's connections end", func() bool { return r.open.Load() == 0 })
	r.end()
	noLeaks()
}

// TestSilentFrontendLink checks that, after a failed dial, the client abandons a silent connection to the tunnel
// server. If the link then works again, open streams of the abandoned connection continue, and the connection is
// closed when they have ended (KON-053).
func TestSilentFrontendLink(t *testing.T) {
	for name, resume := range map[string]chan bool{"lost": nil, "delayed": make(chan bool)} {
		t.Run(name, func(t *testing.T) {
			p := newPKI(t)
			r, err := newRig(t, p, 0, neverCut, neverCut, false)
			must(t, err)
			defer r.end()
			must(t, r.echoOnce(t.Context()))
			var other net.Conn
			if resume != nil {
				other = mustDial(t, r.dial, r.echo)
			}
			r.frontend.resume = resume
			r.frontend.silent.Store(true)
			for range 3 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if err := r.echoOnce(ctx); err == nil {
					t.Error("a dial succeeds on a silent link")
				}
				cancel()
			}
			r.frontend.silent.Store(false) // for new connections
			if resume != nil {
				close(resume)
			}
			must(t, r.echoOnce(t.Context()))
			if resume == nil {
				return
			}
			_, err = io.WriteString(other, "x")
			must(t, err)
			_, err = io.ReadFull(other, make([]byte, 1))
			must(t, err)
			waitFor(t, "two frontend connections are open", func() bool { return r.frontend.open.Load() == 2 })
			must(t, other.Close())
			waitFor(t, "one frontend connection is open", func() bool { return r.frontend.open.Load() == 1 })
		})
	}
}

// TestCancelledDials checks that the client keeps its connection if a dial is cancelled before a response could
// arrive (KON-053).
func TestCancelledDials(t *testing.T) {
	p := newPKI(t)
	r, err := newRig(t, p, 0, neverCut, neverCut, false)
	must(t, err)
	defer r.end()
	must(t, r.echoOnce(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if err := r.echoOnce(ctx); err == nil {
			t.Error("a cancelled dial succeeds")
		}
		must(t, r.echoOnce(t.Context()))
	}
	if n := r.frontend.accepted.Load(); n > 5 { // more than 1 only if the machine is very slow
		t.Errorf("%d connections were opened, want at most 5", n)
	}
}

// TestAgentThatFails checks that an agent whose dials fail gets only one dial, although it has the fewest
// connections (KON-055).
func TestAgentThatFails(t *testing.T) {
	p := newPKI(t)
	r, err := newRig(t, p, time.Minute, neverCut, neverCut, false)
	must(t, err)
	defer r.end()
	mustDial(t, r.dial, r.echo) // through the working agent
	dials := atomic.Int64{}
	failing, err := agent.Connect(t.Context(), r.agent.Addr().String(),
		agent.Options{ID: "fails", TLS: p.agent, KeepaliveTime: time.Minute, Metrics: agent.NewMetrics(),
			Dial: func(context.Context, string, string) (net.Conn, error) {
				dials.Add(1)
				return nil, os.ErrDeadlineExceeded
			}})
	must(t, err)
	defer failing.Close()
	waitFor(t, "the failing agent gets a dial", func() bool { return r.echoOnce(t.Context()) != nil })
	for range 20 {
		must(t, r.echoOnce(t.Context()))
	}
	if dials.Load() != 1 {
		t.Errorf("the failing agent got %d dials, want 1", dials.Load())
	}
}
