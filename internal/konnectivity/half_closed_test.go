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

// halfCloseTimeout is the maximum silence of a connection after one direction has ended.
const halfCloseTimeout = 5 * time.Minute

// clockConn is a connection whose read deadline follows a clock that the test advances.
type clockConn struct {
	*net.TCPConn

	mu                sync.Mutex
	elapsed, deadline time.Duration // deadline is compared with elapsed; 0 means no deadline
}

func (c *clockConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := time.Until(t)
	if c.deadline = 0; t.IsZero() || left <= 0 {
		return c.TCPConn.SetReadDeadline(t)
	}
	c.deadline = c.elapsed + left
	return c.TCPConn.SetReadDeadline(time.Time{})
}

func (c *clockConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// remaining returns the time until the read deadline, or 0 if there is none.
func (c *clockConn) remaining() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, c.deadline-c.elapsed)
}

// advance advances the clock.
func (c *clockConn) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.elapsed += d; c.deadline > 0 && c.deadline <= c.elapsed {
		_ = c.TCPConn.SetReadDeadline(time.Unix(1, 0))
	}
}

// clockListener accepts connections as clockConn.
type clockListener struct {
	net.Listener
	accepted chan *clockConn
}

func (l clockListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	conn := &clockConn{TCPConn: c.(*net.TCPConn)}
	l.accepted <- conn
	return conn, nil
}

// connectClockAgent connects an agent whose connections to destinations are of type clockConn.
func connectClockAgent(t *testing.T, p *pki, s *tunnelServer) (a *agent.Session, dialled chan *clockConn) {
	dialled = make(chan *clockConn, 1)
	a, err := agent.Connect(t.Context(), s.agents, agent.Options{ID: "a", TLS: p.agent, KeepaliveTime: time.Minute,
		Metrics: agent.NewMetrics(), Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			conn := &clockConn{TCPConn: c.(*net.TCPConn)}
			dialled <- conn
			return conn, nil
		}})
	must(t, err)
	t.Cleanup(a.Close)
	waitFor(t, "the server has the agent", s.ready)
	return a, dialled
}

// TestFrontendCloses checks that an API server can close a connection opened with HTTP CONNECT even if the
// destination neither reads nor closes. All resources are released. The tunnel server cannot distinguish this
// close from the end of one direction (KON-044, KON-051).
func TestFrontendCloses(t *testing.T) {
	for _, tr := range []transport{{server.ModeHTTPConnect, true}, {server.ModeHTTPConnect, false}} {
		t.Run(tr.String(), func(t *testing.T) {
			p := newPKI(t)
			s := startTrellisServer(t, p, tr)
			a, dialled := connectClockAgent(t, p, s)
			finished := make(chan struct{})
			stalled := serve(t, func(c net.Conn) {
				<-finished
				_ = c.Close()
			})
			noLeaks := leakCheck(t)
			conns := make([]*clockConn, 5) // more than leakCheck tolerates
			for i := range conns {
				conn := mustDial(t, trellisClient(t, p, tr, s.frontend), stalled)
				conns[i] = <-dialled
				_, err := io.WriteString(conn, "x")
				must(t, err)
				must(t, conn.Close())
			}
			for _, c := range conns {
				waitFor(t, "the read deadline is set", func() bool { return c.remaining() > 0 })
				c.advance(halfCloseTimeout)
			}
			waitPromptly(t, "the agent has no open connections", func() bool { return a.ConnCount() == 0 })
			shutDownPromptly(t, s.trellis)
			close(finished)
			noLeaks()
		})
	}
}

// TestSlowHalfClosedConnection checks that, after one direction has ended, a connection continues as long as data
// arrives in the other direction within the timeout. Otherwise the connection is aborted (KON-044).
func TestSlowHalfClosedConnection(t *testing.T) {
	for _, side := range []string{"API server", "destination"} {
		t.Run("ended by the "+side, func(t *testing.T) {
			p, tr := newPKI(t), transport{server.ModeHTTPConnect, false}
			s := startTrellisServer(t, p, tr)
			a, dialled := connectClockAgent(t, p, s)
			frontends := clockListener{listen(t, "tcp", "127.0.0.1:0"), make(chan *clockConn, 1)}
			go func() {
				_ = s.trellis.ServeFrontends(tls.NewListener(tlsbatch.Listener{Listener: frontends}, p.server), tr.mode)
			}()
			accepted := make(chan net.Conn, 1)
			frontend := mustDial(t, trellisClient(t, p, tr, frontends.Addr().String()),
				serve(t, func(c net.Conn) { accepted <- c }))
			destination := <-accepted
			defer frontend.Close()
			defer destination.Close()
			ended, active, clock := frontend, destination, <-dialled
			if side == "destination" {
				ended, active, clock = destination, frontend, <-frontends.accepted
			}
			must(t, ended.(interface{ CloseWrite() error }).CloseWrite())
			for range 5 {
				waitFor(t, "the deadline is extended",
					func() bool { return clock.remaining() > halfCloseTimeout-time.Minute })
				clock.advance(halfCloseTimeout - time.Minute)
				_, err := io.WriteString(active, "x")
				must(t, err)
				_ = ended.SetReadDeadline(time.Now().Add(testTimeout))
				_, err = io.ReadFull(ended, make([]byte, 1))
				must(t, err)
			}
			clock.advance(halfCloseTimeout)
			checkAborted(t, ended)
			waitPromptly(t, "the agent has no open connections", func() bool { return a.ConnCount() == 0 })
			shutDownPromptly(t, s.trellis)
		})
	}
}

// checkAborted reads until the connection ends. It fails the test unless the connection ends with an error.
func checkAborted(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(testTimeout))
	if _, err := io.ReadAll(c); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection ends with %v, want an error", err)
	}
}

// TestAbortOverTLS checks that an aborted connection opened with HTTP CONNECT over TLS does not end normally.
// Otherwise a truncated response would look complete (KON-051, KON-053).
func TestAbortOverTLS(t *testing.T) {
	for name, abort := range map[string]func(a *agent.Session, destination net.Conn){
		"the agent is killed": func(a *agent.Session, _ net.Conn) { a.Close() },
		"the destination resets": func(_ *agent.Session, c net.Conn) {
			_, _ = c.(*net.TCPConn).SetLinger(0), c.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, tr := newPKI(t), transport{server.ModeHTTPConnect, false}
			s := startTrellisServer(t, p, tr)
			a := connectTrellisAgent(t, p, s.agents)
			waitFor(t, "the server has the agent", s.ready)
			accepted := make(chan net.Conn, 1)
			conn := mustDial(t, trellisClient(t, p, tr, s.frontend), serve(t, func(c net.Conn) { accepted <- c }))
			defer conn.Close()
			destination := <-accepted
			defer destination.Close()
			const half = "half of a"
			_, err := io.WriteString(destination, half+" response")
			must(t, err)
			_, err = io.ReadFull(conn, make([]byte, len(half)))
			must(t, err)
			abort(a, destination)
			checkAborted(t, conn)
		})
	}
}
