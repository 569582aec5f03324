package konnectivity_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/agent"
	"github.com/trellis-k8s/trellis/internal/konnectivity/server"
	"github.com/trellis-k8s/trellis/internal/tlsbatch"
)

// halfTime is how long nothing may come on a connection of which the other half is over.
const halfTime = 5 * time.Minute

// timed is a connection that is read until a test says that so much time has passed.
type timed struct {
	*net.TCPConn

	mu          sync.Mutex
	passed, due time.Duration // due: by passed; 0: never
}

func (c *timed) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := time.Until(t)
	if c.due = 0; t.IsZero() || left <= 0 {
		return c.TCPConn.SetReadDeadline(t)
	}
	c.due = c.passed + left
	return c.TCPConn.SetReadDeadline(time.Time{})
}

func (c *timed) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// left is how much time there is; 0: there is no limit.
func (c *timed) left() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, c.due-c.passed)
}

// pass has time pass.
func (c *timed) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.passed += d; c.due > 0 && c.due <= c.passed {
		_ = c.TCPConn.SetReadDeadline(time.Unix(1, 0))
	}
}

// timedListener accepts connections that are timed.
type timedListener struct {
	net.Listener
	accepted chan *timed
}

func (l timedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &timed{TCPConn: c.(*net.TCPConn)}
	l.accepted <- conn
	return conn, nil
}

// timedAgent is one whose connections are timed.
func timedAgent(t *testing.T, p *pki, s *tunnelServer) (a *agent.Session, dialled chan *timed) {
	dialled = make(chan *timed, 1)
	a, err := agent.Connect(t.Context(), s.agents, agent.Options{ID: "a", TLS: p.agent, KeepaliveTime: time.Minute, Metrics: agent.NewMetrics(), Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conn := &timed{TCPConn: c.(*net.TCPConn)}
		dialled <- conn
		return conn, nil
	}})
	must(t, err)
	t.Cleanup(a.Close)
	until(t, "the server has the agent", s.ready)
	return a, dialled
}

// KON-044 KON-051: an API server that closes all of a connection by HTTP CONNECT, of which no more is seen than that it sends nothing more,
// leaves nothing behind, whatever the destination does: this one neither reads nor closes.
func TestFrontThatCloses(t *testing.T) {
	for _, tr := range []transport{{server.ModeHTTPConnect, true}, {server.ModeHTTPConnect, false}} {
		t.Run(tr.String(), func(t *testing.T) {
			p := newPKI(t)
			s := ourServer(t, p, tr)
			a, dialled := timedAgent(t, p, s)
			over := make(chan struct{})
			hangs := serve(t, func(c net.Conn) {
				<-over
				_ = c.Close()
			})
			rest := atRest(t)
			conns := make([]*timed, 5) // more than atRest overlooks
			for i := range conns {
				conn := open(t, ourFront(t, p, tr, s.front), hangs)
				conns[i] = <-dialled
				_, err := io.WriteString(conn, "x")
				must(t, err)
				must(t, conn.Close())
			}
			for _, c := range conns {
				until(t, "there is a limit", func() bool { return c.left() > 0 })
				c.pass(halfTime)
			}
			soon(t, "the agent has nothing open", func() bool { return a.ConnCount() == 0 })
			atOnce(t, s.ours)
			close(over)
			rest()
		})
	}
}

// KON-044: a connection of which either side has ended its half goes on as long as something comes the other way now and then. When nothing
// does any longer, it breaks off.
func TestHalfThatIsSlow(t *testing.T) {
	for _, ended := range []string{"API server", "destination"} {
		t.Run("by the "+ended, func(t *testing.T) {
			p, tr := newPKI(t), transport{server.ModeHTTPConnect, false}
			s := ourServer(t, p, tr)
			a, dialled := timedAgent(t, p, s)
			fronts := timedListener{listen(t, "tcp", "127.0.0.1:0"), make(chan *timed, 1)}
			go func() {
				_ = s.ours.ServeFrontends(tls.NewListener(tlsbatch.Listener{Listener: fronts}, p.server), tr.mode)
			}()
			accepted := make(chan net.Conn, 1)
			front := open(t, ourFront(t, p, tr, fronts.Addr().String()), serve(t, func(c net.Conn) { accepted <- c }))
			destination := <-accepted
			defer front.Close()
			defer destination.Close()
			ends, speaks, clock := front, destination, <-dialled
			if ended == "destination" {
				ends, speaks, clock = destination, front, <-fronts.accepted
			}
			must(t, ends.(interface{ CloseWrite() error }).CloseWrite())
			for range 5 {
				until(t, "there is as much time as ever", func() bool { return clock.left() > halfTime-time.Minute })
				clock.pass(halfTime - time.Minute)
				_, err := io.WriteString(speaks, "x")
				must(t, err)
				_ = ends.SetReadDeadline(time.Now().Add(patience))
				_, err = io.ReadFull(ends, make([]byte, 1))
				must(t, err)
			}
			clock.pass(halfTime)
			breaksOff(t, ends)
			soon(t, "the agent has nothing open", func() bool { return a.ConnCount() == 0 })
			atOnce(t, s.ours)
		})
	}
}

// breaksOff reads to the end, which is to be none in order.
func breaksOff(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadAll(c); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("it ends with %v", err)
	}
}

// KON-051 KON-053: a connection by HTTP CONNECT over TLS that breaks in the middle does not look like one that ends, as what has come would
// then pass for all.
func TestBreakIsNoEnd(t *testing.T) {
	for name, breaks := range map[string]func(a *agent.Session, destination net.Conn){
		"the agent is killed":    func(a *agent.Session, _ net.Conn) { a.Close() },
		"the destination resets": func(_ *agent.Session, c net.Conn) { _, _ = c.(*net.TCPConn).SetLinger(0), c.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			p, tr := newPKI(t), transport{server.ModeHTTPConnect, false}
			s := ourServer(t, p, tr)
			a := ourAgent(t, p, s.agents)
			until(t, "the server has the agent", s.ready)
			accepted := make(chan net.Conn, 1)
			conn := open(t, ourFront(t, p, tr, s.front), serve(t, func(c net.Conn) { accepted <- c }))
			defer conn.Close()
			destination := <-accepted
			defer destination.Close()
			const half = "half of an"
			_, err := io.WriteString(destination, half+" answer")
			must(t, err)
			_, err = io.ReadFull(conn, make([]byte, len(half)))
			must(t, err)
			breaks(a, destination)
			breaksOff(t, conn)
		})
	}
}
