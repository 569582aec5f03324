// Package server is the tunnel server of Konnectivity: API servers ask it for connections into a cluster, and it has agents, which have
// connected to it from there, open them.
package server

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
)

// Options say how a Server behaves.
type Options struct {
	// ID is the server's, by which agents tell servers apart.
	ID string
	// Count is how many servers there are, as agents are told.
	Count int
	// Strategies choose the agent of a connection, the first that finds one.
	Strategies []Strategy
	// Authenticate says whether a token is an agent's; nil: agents have shown a certificate.
	Authenticate func(ctx context.Context, token string) error
	// DialTimeout is how long an agent has to open a connection; 0: as long as who asks for it waits.
	DialTimeout time.Duration
	// KeepaliveTime is how long agents are silent before they are pinged; FrontendKeepaliveTime the same of API servers.
	KeepaliveTime, FrontendKeepaliveTime time.Duration
	Metrics                              *Metrics
}

// Mode is how API servers ask for connections.
type Mode string

// The modes (--mode).
const (
	ModeGRPC        Mode = "grpc"
	ModeHTTPConnect Mode = "http-connect"
)

// Server is a tunnel server.
type Server struct {
	options Options
	agents  *Agents

	mu        sync.Mutex
	listeners []net.Listener
	conns     map[*h2.Conn]bool
	leaving   bool
	open      sync.WaitGroup // connections through the tunnel
}

// New returns a Server that serves nothing yet.
func New(o Options) *Server {
	return &Server{options: o, agents: NewAgents(o.Strategies), conns: map[*h2.Conn]bool{}}
}

// Ready says that an agent is connected.
func (s *Server) Ready() bool { return s.agents.Len() > 0 }

// listen accepts connections, each served by a goroutine, until the listener is closed.
func (s *Server) listen(l net.Listener, serve func(net.Conn)) error {
	s.mu.Lock()
	s.listeners = append(s.listeners, l)
	s.mu.Unlock()
	for wait := time.Duration(0); ; {
		conn, err := l.Accept()
		switch {
		case err == nil:
			wait = 0
			go serve(conn)
		case errors.Is(err, net.ErrClosed):
			return nil
		default: // too many open files, for one
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			time.Sleep(wait)
		}
	}
}

// run serves a connection of HTTP/2 to its end, which is the Server's too.
func (s *Server) run(c *h2.Conn, keepalive time.Duration) error {
	s.mu.Lock()
	s.conns[c] = true
	if s.leaving {
		c.GoAway()
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	if keepalive > 0 {
		c.KeepAlive(keepalive)
	}
	return c.Run()
}

// dial has an agent open a connection.
func (s *Server) dial(address string, answered func(tunnel.Joint, error)) (cancel func()) {
	s.mu.Lock()
	leaving := s.leaving
	s.mu.Unlock()
	if leaving {
		answered(nil, errors.New("the tunnel server is shutting down"))
		return func() {}
	}
	a, err := s.agents.Pick(address)
	if err != nil {
		s.options.Metrics.DialFailed("no_agent")
		answered(nil, err)
		return func() {}
	}
	d := &dialled{server: s, began: time.Now(), answered: answered}
	s.options.Metrics.Dialling(1)
	d.cancel = a.(*agent).dial(address, d.answer)
	if limit := s.options.DialTimeout; limit > 0 {
		d.limit(limit)
	}
	return d.cancel
}

// dialled is a connection that is being opened.
type dialled struct {
	server   *Server
	began    time.Time
	answered func(tunnel.Joint, error)
	cancel   func()

	mu    sync.Mutex
	timer *time.Timer
	late  bool
	over  bool
}

func (d *dialled) limit(limit time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.over {
		d.timer = time.AfterFunc(limit, func() {
			d.mu.Lock()
			d.late = true
			d.mu.Unlock()
			d.cancel()
		})
	}
}

func (d *dialled) answer(other tunnel.Joint, err error) {
	d.mu.Lock()
	d.over = true
	if d.timer != nil {
		d.timer.Stop()
	}
	if err != nil && d.late {
		err = errors.New("timed out waiting for backend dial") // the reference's words
	}
	d.mu.Unlock()
	m := d.server.options.Metrics
	if m.Dialling(-1); err != nil {
		m.DialFailed(reason(err))
		d.answered(nil, err)
		return
	}
	m.Dialled(time.Since(d.began))
	d.answered(other, nil)
}

// reason is what metrics say of a failure.
func reason(err error) string {
	if strings.Contains(err.Error(), "timed out waiting") {
		return "backend_dial_timeout"
	}
	return "error_response"
}

// Shutdown takes no new agents and no new connections, waits for those that are open until the context ends, and closes what is left.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	s.leaving = true
	for _, l := range s.listeners {
		_ = l.Close()
	}
	for c := range s.conns {
		c.GoAway()
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.open.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.Close(nil)
	}
}
