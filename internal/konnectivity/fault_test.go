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

// relay is a link that can be cut: after so many bytes in one direction, or when it is told to.
type relay struct {
	net.Listener
	network, to string
	down        bool         // counts what goes back
	left        atomic.Int64 // bytes until it is cut
	silent      atomic.Bool  // passes nothing on, and says nothing of it
	again       chan bool    // closed when it passes on what it was given while it was silent; nil: that is lost
	made, open  atomic.Int64 // connections

	mu    sync.Mutex
	conns map[net.Conn]bool
	over  chan struct{} // closed when it is cut
}

func newRelay(t testing.TB, network, to string, cutAfter int64, down bool) *relay {
	at := "127.0.0.1:0"
	if network == "unix" {
		at = filepath.Join(t.TempDir(), "relay")
	}
	r := &relay{Listener: listen(t, network, at), network: network, to: to, down: down, conns: map[net.Conn]bool{}, over: make(chan struct{})}
	r.left.Store(cutAfter)
	go serveOn(r, r.link)
	return r
}

func (r *relay) link(c net.Conn) {
	to, err := net.Dial(r.network, r.to)
	if err != nil {
		_ = c.Close()
		return
	}
	r.mu.Lock()
	r.conns[c], r.conns[to] = true, true
	r.mu.Unlock()
	r.made.Add(1)
	r.open.Add(1)
	defer r.open.Add(-1)
	var both sync.WaitGroup
	both.Go(func() { r.copy(to, c, !r.down) })
	both.Go(func() { r.copy(c, to, r.down) })
	both.Wait()
	_ = c.Close()
	_ = to.Close()
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
			case <-r.over:
				return
			case <-r.again:
			}
		}
		if counted {
			if left := r.left.Add(-int64(n)); left < 0 {
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

// cut breaks all its connections off.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		_ = c.Close()
	}
	if r.conns != nil {
		close(r.over)
	}
	r.conns = nil
	_ = r.Close()
}

const never = 1 << 60

// rig is a tunnel whose links can be cut, and a destination that echoes.
type rig struct {
	*tunnelServer
	dial         dialer
	front, agent *relay
	destination  net.Listener
	echo         string
	open         atomic.Int64 // connections at the destination
	client       *client.Client
	session      *agent.Session
}

func newRig(t testing.TB, p *pki, keepalive time.Duration, frontCut, agentCut int64, down bool) (*rig, error) {
	r := &rig{}
	s := server.New(server.Options{ID: "s", Count: 1, KeepaliveTime: keepalive, FrontendKeepaliveTime: keepalive, Strategies: []server.Strategy{server.Default}, Logger: slog.New(slog.DiscardHandler)})
	agents := listen(t, "tcp", "127.0.0.1:0")
	go func() { _ = s.ServeAgents(tls.NewListener(agents, p.server)) }()
	fronts := listen(t, "unix", filepath.Join(t.TempDir(), "front"))
	go func() { _ = s.ServeFrontends(fronts, server.ModeGRPC) }()
	r.tunnelServer = &tunnelServer{ours: s}
	r.agent = newRelay(t, "tcp", agents.Addr().String(), agentCut, down)
	r.front = newRelay(t, "unix", fronts.Addr().String(), frontCut, down)
	r.client = client.New(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", r.front.Addr().String())
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
	r.session, err = agent.Connect(t.Context(), r.agent.Addr().String(), agent.Options{ID: "a", TLS: p.agent, KeepaliveTime: keepalive,
		Dial: (&net.Dialer{}).DialContext, Metrics: agent.NewMetrics()})
	if err != nil {
		return r, err
	}
	until(t, "the server has the agent", func() bool { return s.Ready() || r.agent.closed() })
	return r, nil
}

// end closes all that is left.
func (r *rig) end() {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	r.ours.Shutdown(over)
	r.client.Close()
	if r.session != nil {
		r.session.Close()
	}
	r.front.cut()
	r.agent.cut()
	_ = r.destination.Close()
}

// once has something go there and back.
func (r *rig) once(ctx context.Context) error {
	conn, err := r.dial(ctx, r.echo)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := conn.Write(make([]byte, 100)); err != nil {
		return err
	}
	if err = conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	if n, err := io.Copy(io.Discard, conn); n != 100 || err != nil {
		return fmt.Errorf("%d bytes came back, %w", n, err)
	}
	return nil
}

// atRest waits until there are no more goroutines, and no more files open, than before, and hardly more memory in use.
func atRest(t testing.TB) func() {
	files := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(all)
	}
	manyGoroutines()
	goroutines, descriptors, heap := runtime.NumGoroutine(), files(), inUse()
	return func() {
		t.Helper()
		limit := time.After(patience)
		for runtime.NumGoroutine() > goroutines+2 || files() > descriptors+2 || inUse() > heap+spareHeap {
			select {
			case <-limit:
				stacks := make([]byte, 1<<20)
				t.Fatalf("%d goroutines, and were %d; %d files, and were %d; %d bytes, and were %d\n%s", runtime.NumGoroutine(), goroutines, files(), descriptors,
					inUse(), heap, stacks[:runtime.Stack(stacks, true)])
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// manyGoroutines has there be more at once than any test has, as Go keeps what it has for each.
var manyGoroutines = sync.OnceFunc(func() {
	var all sync.WaitGroup
	end := make(chan struct{})
	for range 5000 {
		all.Go(func() { <-end })
	}
	close(end)
	all.Wait()
})

// spareHeap is less than a thousand connections have.
const spareHeap = 1 << 20

// inUse is how many bytes of memory are, when pools have been emptied.
func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// KON-053 KON-054: wherever a link is cut, in every packet and between all, what goes through it ends soon and with an error, and nothing is
// left: no goroutine, no file, no connection at the destination.
func TestCutAnywhere(t *testing.T) {
	p := newPKI(t)
	step, most := 37, 1200
	if testing.Short() {
		step *= 10
	}
	for _, down := range []bool{false, true} {
		for _, link := range []string{"front", "agent"} {
			t.Run(fmt.Sprintf("%s, down=%v", link, down), func(t *testing.T) {
				rest := atRest(t)
				passed, failed := 0, 0
				for after := 0; after < most; after += step {
					frontCut, agentCut := int64(never), int64(never)
					if link == "front" {
						frontCut = int64(after)
					} else {
						agentCut = int64(3 * after) // there is a TLS handshake before
					}
					r, err := newRig(t, p, time.Minute, frontCut, agentCut, down)
					if err == nil {
						ctx, cancel := context.WithTimeout(t.Context(), patience)
						err = r.once(ctx)
						if cancel(); ctx.Err() == context.DeadlineExceeded {
							t.Fatalf("cut after %d bytes: nothing has happened", after)
						}
					}
					if err == nil {
						passed++
					} else {
						failed++
					}
					until(t, "the destination's connection ends", func() bool { return r.open.Load() == 0 })
					r.end()
				}
				rest()
				t.Logf("%d passed, %d failed", passed, failed)
				if failed == 0 {
					t.Error("nothing was cut")
				}
			})
		}
	}
}

// KON-053: a link that goes silent without an end is found out by both sides, and its connections end.
func TestSilentLink(t *testing.T) {
	rest := atRest(t)
	p := newPKI(t)
	r, err := newRig(t, p, 100*time.Millisecond, never, never, false)
	must(t, err)
	conn := open(t, r.dial, r.echo)
	until(t, "the destination is connected", func() bool { return r.open.Load() == 1 })
	r.agent.silent.Store(true)
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	if _, err := conn.Read(make([]byte, 1)); err == nil || err == io.EOF || os.IsTimeout(err) {
		t.Errorf("the connection ends with %v", err)
	}
	if r.session.Wait() == nil {
		t.Error("the agent does not notice")
	}
	until(t, "the server has no agent", func() bool { return !r.ours.Ready() })
	until(t, "the destination's connection ends", func() bool { return r.open.Load() == 0 })
	_ = conn.Close()
	r.end()
	rest()
}

// KON-053: a server that ends under many connections ends them all at once.
func TestServerEndsUnderManyConnections(t *testing.T) {
	rest := atRest(t)
	p := newPKI(t)
	r, err := newRig(t, p, time.Minute, never, never, false)
	must(t, err)
	conns := make([]net.Conn, 1000)
	for i := range conns {
		conns[i] = open(t, r.dial, r.echo)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	r.ours.Shutdown(over)
	for _, c := range conns {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			t.Fatalf("a connection ends with %v", err)
		}
		_ = c.Close()
	}
	until(t, "the destination's connections end", func() bool { return r.open.Load() == 0 })
	r.end()
	rest()
}

// KON-055: agents come and go under a load, and those that are there serve: each that goes breaks off what it has open, which is one connection
// of the load at most, and is not asked again.
func TestAgentsThatFlap(t *testing.T) {
	rest := atRest(t)
	p := newPKI(t)
	r, err := newRig(t, p, time.Minute, never, never, false)
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
				s, err := agent.Connect(context.Background(), r.agent.Addr().String(), agent.Options{ID: fmt.Sprint("flaps ", i), TLS: p.agent, KeepaliveTime: time.Minute, Metrics: agent.NewMetrics(),
					Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
						served.Add(1)
						return (&net.Dialer{}).DialContext(ctx, network, address)
					}})
				if err == nil {
					_ = r.once(t.Context())
					left.Add(1)
					s.Close()
					_ = s.Wait()
				}
			}
		})
	}
	passed, failed := 0, int64(0)
	for passed < 100 || left.Load() < 50 || served.Load() < 20 {
		if r.once(t.Context()) == nil {
			passed++
		} else if failed++; failed > left.Load() {
			t.Fatalf("%d have failed of %d, and %d agents have left", failed, failed+int64(passed), left.Load())
		}
	}
	close(stop)
	all.Wait()
	t.Logf("%d passed, %d failed, %d agents left, which had served %d", passed, failed, left.Load(), served.Load())
	until(t, "those that have gone are forgotten, and what is left serves", func() bool { return r.once(t.Context()) == nil })
	until(t, "the destination's connections end", func() bool { return r.open.Load() == 0 })
	r.end()
	rest()
}

// KON-053: a connection to the tunnel server that has gone without a word, with nothing else on it, is not dialled over for ever: the dial
// that waits in vain is the last. If the other end was there all the time nothing is left of the connections that were given up; but what
// goes through them goes on.
func TestSilentFront(t *testing.T) {
	for name, again := range map[string]chan bool{"lost": nil, "held up": make(chan bool)} {
		t.Run(name, func(t *testing.T) {
			p := newPKI(t)
			r, err := newRig(t, p, 0, never, never, false)
			must(t, err)
			defer r.end()
			must(t, r.once(t.Context()))
			var other net.Conn
			if again != nil {
				other = open(t, r.dial, r.echo)
			}
			r.front.again = again
			r.front.silent.Store(true)
			for range 3 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if err := r.once(ctx); err == nil {
					t.Error("something has gone through")
				}
				cancel()
			}
			r.front.silent.Store(false) // for new connections
			if again != nil {
				close(again)
			}
			must(t, r.once(t.Context()))
			if again == nil {
				return
			}
			_, err = io.WriteString(other, "x")
			must(t, err)
			_, err = io.ReadFull(other, make([]byte, 1))
			must(t, err)
			until(t, "two connections are left", func() bool { return r.front.open.Load() == 2 })
			must(t, other.Close())
			until(t, "one is left", func() bool { return r.front.open.Load() == 1 })
		})
	}
}

// KON-053: a dial that ends before an answer can have come says nothing of the connection, which is kept.
func TestDialsThatEndAtOnce(t *testing.T) {
	p := newPKI(t)
	r, err := newRig(t, p, 0, never, never, false)
	must(t, err)
	defer r.end()
	must(t, r.once(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if err := r.once(ctx); err == nil {
			t.Error("it has not ended")
		}
		must(t, r.once(t.Context()))
	}
	if made := r.front.made.Load(); made > 5 { // but one, unless the machine stops for as long as an answer may take
		t.Errorf("%d connections were made", made)

	}
}

// KON-055: an agent that can dial nothing has the fewest connections, and is asked once.
func TestAgentThatFails(t *testing.T) {
	p := newPKI(t)
	r, err := newRig(t, p, time.Minute, never, never, false)
	must(t, err)
	defer r.end()
	open(t, r.dial, r.echo) // by the one that can
	asked := atomic.Int64{}
	failing, err := agent.Connect(t.Context(), r.agent.Addr().String(), agent.Options{ID: "fails", TLS: p.agent, KeepaliveTime: time.Minute, Metrics: agent.NewMetrics(),
		Dial: func(context.Context, string, string) (net.Conn, error) {
			asked.Add(1)
			return nil, os.ErrDeadlineExceeded
		}})
	must(t, err)
	defer failing.Close()
	until(t, "it is asked", func() bool { return r.once(t.Context()) != nil })
	for range 20 {
		must(t, r.once(t.Context()))
	}
	if asked.Load() != 1 {
		t.Errorf("it was asked %d times", asked.Load())
	}
}
