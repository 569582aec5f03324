// Package server is the tunnel server of Konnectivity: API servers ask it for connections into a cluster, and it has agents, which have
// connected to it from there, open them.
package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
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
	Logger                               *slog.Logger
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
	agents  *Agents[*agent]

	mu        sync.Mutex
	listeners []net.Listener
	conns     map[*h2.Conn]bool
	fronts    []*http.Server
	leaving   bool
	gone      bool
	open      int           // connections through the tunnel, and those that are asked for
	idle      chan struct{} // closed when there are none left, once it is leaving
}

// New returns a Server that serves nothing yet.
func New(o Options) *Server {
	s := &Server{options: o, agents: NewAgents[*agent](o.Strategies, o.Metrics), conns: map[*h2.Conn]bool{}, idle: make(chan struct{})}
	o.Metrics.Established(s.agents.Open)
	return s
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
			<-time.After(wait)
		}
	}
}

// run serves a connection of HTTP/2 to its end, which is the Server's too.
func (s *Server) run(c *h2.Conn, keepalive time.Duration) error {
	s.mu.Lock()
	s.conns[c] = true
	leaving, gone := s.leaving, s.gone
	s.mu.Unlock()
	switch {
	case gone:
		c.Close(nil)
	case leaving:
		c.GoAway()
	}
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
	c.KeepAlive(keepalive)
	return c.Run()
}

var errLeaving = errors.New("the tunnel server is shutting down")

// enter counts a connection that is asked for; leave, that it is over.
func (s *Server) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leaving {
		return errLeaving
	}
	s.open++
	return nil
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open--; s.leaving && s.open == 0 {
		close(s.idle)
	}
}

// dial has an agent open a connection.
func (s *Server) dial(address string, answered func(tunnel.Joint, error)) (cancel func()) {
	a, err := s.agents.Pick(address)
	if err != nil {
		s.options.Metrics.DialFailed(NoAgent)
		answered(nil, err)
		return func() {}
	}
	d := &dialled{server: s, by: a, began: time.Now(), answered: answered}
	s.options.Metrics.Dialing()
	d.cancel = a.dial(address, d.answer)
	if limit := s.options.DialTimeout; limit > 0 {
		d.limit(limit)
	}
	return d.cancel
}

// dialled is a connection that is being opened.
type dialled struct {
	server   *Server
	by       *agent
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
		err = errDialTimeout
	}
	d.mu.Unlock()
	m := d.server.options.Metrics
	if m.DialDone(); err != nil {
		d.by.failed.Store(time.Now().UnixNano())
		m.DialFailed(reason(err))
		d.answered(nil, err)
		return
	}
	d.by.failed.Store(0)
	m.Opened(time.Since(d.began))
	d.answered(other, nil)
}

var errDialTimeout = errors.New("timed out waiting for backend dial") // the reference's words

// reason is what metrics say of a failure.
func reason(err error) string {
	if errors.Is(err, errDialTimeout) {
		return DialTimedOut
	}
	return ErrorResponse
}

// Shutdown takes no new agents and no new connections, waits for those that are open until the context ends, and closes what is left.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	if !s.leaving && s.open == 0 {
		close(s.idle)
	}
	s.leaving = true
	for _, l := range s.listeners {
		_ = l.Close()
	}
	for c := range s.conns {
		c.GoAway()
	}
	s.mu.Unlock()
	select {
	case <-s.idle:
	case <-ctx.Done():
	}
	s.mu.Lock()
	s.gone = true
	conns, fronts := slices.Collect(maps.Keys(s.conns)), s.fronts
	s.mu.Unlock()
	for _, c := range conns {
		c.Close(nil)
	}
	for _, f := range fronts {
		_ = f.Close()
	}
}
