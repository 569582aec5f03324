// Package server is the tunnel server of Konnectivity: API servers ask it for connections into a cluster, and it has agents, which have
// connected to it from there, open them.
package server

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
	options         Options
	metrics         *metrics
	agents          *agents
	reviews         *reviewQueue
	unauthenticated *unauthenticatedConns

	mu          sync.Mutex
	listeners   []net.Listener
	conns       map[*h2.Conn]bool // true: of an API server
	httpServers []*http.Server
	draining    bool
	closed      bool
	open        int           // connections through the tunnel, and those that are asked for
	idle        chan struct{} // closed when there are none left, once it is leaving
}

// New returns a Server that serves nothing yet.
func New(o Options) *Server {
	s := &Server{options: o, reviews: newReviewQueue(), unauthenticated: newUnauthenticatedConns(), conns: map[*h2.Conn]bool{}, idle: make(chan struct{})}
	s.metrics = newMetrics(func() int { return s.agents.established() })
	s.agents = newAgents(o.Strategies, s.metrics)
	return s
}

// Ready says that an agent is connected, and one that can be chosen.
func (s *Server) Ready() bool { return s.agents.ready() }

// listen accepts connections, which serve may not block, until the listener is closed.
func (s *Server) listen(l net.Listener, serve func(net.Conn)) error {
	s.mu.Lock()
	s.listeners = append(s.listeners, l)
	s.mu.Unlock()
	for wait := time.Duration(0); ; {
		conn, err := l.Accept()
		switch {
		case err == nil:
			wait = 0
			serve(conn)
		case errors.Is(err, net.ErrClosed):
			return nil
		default: // too many open files, for one
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			<-time.After(wait)
		}
	}
}

// run serves a connection of HTTP/2 to its end, which is the Server's too.
func (s *Server) run(c *h2.Conn, front bool, keepalive time.Duration) error {
	s.mu.Lock()
	s.conns[c] = front
	leaving, gone := s.draining, s.closed
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

var errShuttingDown = errors.New("the tunnel server is shutting down")

// trackConnection counts a connection that is asked for until leave is called.
func (s *Server) trackConnection(among prometheus.Gauge) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return nil, errShuttingDown
	}
	s.open++
	among.Inc()
	return func() {
		among.Dec()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open--; s.draining && s.open == 0 {
			close(s.idle)
		}
	}, nil
}

// dial has an agent open a connection.
func (s *Server) dial(address string, answered func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
	m := s.metrics
	a, err := s.agents.pick(address)
	if err != nil {
		m.failures.WithLabelValues(noAgent).Inc()
		answered(nil, err)
		return func() {}
	}
	began, asked := time.Now(), make(chan struct{})
	var late atomic.Bool
	limit := time.AfterFunc(cmp.Or(s.options.DialTimeout, math.MaxInt64), func() {
		<-asked // until there is what cancels it
		late.Store(true)
		cancel()
	})
	m.pending.Inc()
	cancel = a.dial(address, func(other tunnel.UnpairedEndpoint, err error) {
		limit.Stop()
		m.pending.Dec()
		reason := errorResponse
		if err != nil && late.Load() {
			err, reason = errDialTimeout, dialTimedOut
		}
		a.recordDial(err)
		if err != nil {
			m.failures.WithLabelValues(reason).Inc()
			answered(nil, err)
			return
		}
		m.dials.Observe(time.Since(began).Seconds())
		answered(other, nil)
	})
	close(asked)
	return cancel
}

var errDialTimeout = errors.New("timed out waiting for backend dial") // the reference's words

// Shutdown takes no new agents and no new connections, waits for those that are open until the context ends, and closes what is left.
func (s *Server) Shutdown(ctx context.Context) {
	s.mu.Lock()
	if !s.draining && s.open == 0 {
		close(s.idle)
	}
	s.draining = true
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
	s.closed = true
	conns, fronts := maps.Clone(s.conns), s.httpServers
	s.mu.Unlock()
	for c, front := range conns {
		if c.Retire(); front { // what has come of connections that have ended may be on its way yet
			select {
			case <-c.Done():
			case <-ctx.Done():
			}
		}
	}
	for c := range conns {
		c.Close(nil)
	}
	for _, f := range fronts {
		_ = f.Close()
	}
}
