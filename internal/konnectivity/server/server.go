// Package server implements the Konnectivity tunnel server. API servers request connections into a cluster from
// the tunnel server. Agents open these connections: they run in the cluster and have connected to the tunnel
// server. The package must not import the agent or the client.
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

// Options configure a Server.
type Options struct {
	// ID is the server's ID. Agents use it to distinguish servers.
	ID string
	// Count is the number of tunnel servers. The Server sends it to agents.
	Count int
	// Strategies select the agent for a connection. They are tried in order.
	Strategies []Strategy
	// Authenticate checks an agent's token. nil means that agents authenticate with a client certificate.
	Authenticate func(ctx context.Context, token string) error
	// DialTimeout limits the time for an agent to open a connection. 0 means that only the API server limits it.
	DialTimeout time.Duration
	// KeepaliveTime is the silence after which an agent is pinged. FrontendKeepaliveTime is the silence after
	// which an API server is pinged.
	KeepaliveTime, FrontendKeepaliveTime time.Duration
	Logger                               *slog.Logger
}

// Mode is the protocol with which API servers request connections.
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
	conns       map[*h2.Conn]bool // true for connections of API servers
	httpServers []*http.Server
	draining    bool
	closed      bool
	open        int           // tunnelled connections, including pending ones
	idle        chan struct{} // closed when the server is draining and open is 0
}

// New returns a Server without listeners.
func New(o Options) *Server {
	s := &Server{
		options:         o,
		reviews:         newReviewQueue(),
		unauthenticated: newUnauthenticatedConns(),
		conns:           map[*h2.Conn]bool{},
		idle:            make(chan struct{}),
	}

	s.metrics = newMetrics(func() int { return s.agents.established() })
	s.agents = newAgents(o.Strategies, s.metrics)
	return s
}

// Ready reports whether a strategy can select a connected agent.
func (s *Server) Ready() bool { return s.agents.ready() }

// listen accepts connections until the listener is closed, and calls serve for each. serve must not block.
func (s *Server) listen(l net.Listener, serve func(net.Conn)) error {
	s.mu.Lock()
	s.listeners = append(s.listeners, l)
	s.mu.Unlock()
	for delay := time.Duration(0); ; {
		conn, err := l.Accept()
		switch {
		case err == nil:
			delay = 0
			serve(conn)
		case errors.Is(err, net.ErrClosed):
			return nil
		default: // for example, too many open files
			delay = min(max(2*delay, 5*time.Millisecond), time.Second)
			<-time.After(delay)
		}
	}
}

// run serves an HTTP/2 connection until it ends or the Server is closed.
func (s *Server) run(c *h2.Conn, frontend bool, keepalive time.Duration) error {
	s.mu.Lock()
	s.conns[c] = frontend
	draining, closed := s.draining, s.closed
	s.mu.Unlock()
	switch {
	case closed:
		c.Close(nil)
	case draining:
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

// trackConnection counts a tunnelled connection until release is called.
func (s *Server) trackConnection(gauge prometheus.Gauge) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return nil, errShuttingDown
	}
	s.open++
	gauge.Inc()
	return func() {
		gauge.Dec()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.open--; s.draining && s.open == 0 {
			close(s.idle)
		}
	}, nil
}

// dial opens a connection through an agent. It is a tunnel.DialFunc.
func (s *Server) dial(address string, done func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
	metrics := s.metrics
	agent, err := s.agents.pick(address)
	if err != nil {
		metrics.failures.WithLabelValues(noAgent).Inc()
		done(nil, err)
		return func() {}
	}
	start, cancelSet := time.Now(), make(chan struct{})
	var timedOut atomic.Bool
	timer := time.AfterFunc(cmp.Or(s.options.DialTimeout, math.MaxInt64), func() {
		<-cancelSet // wait until cancel is assigned
		timedOut.Store(true)
		cancel()
	})
	metrics.pending.Inc()
	cancel = agent.dial(address, func(peer tunnel.UnpairedEndpoint, err error) {
		timer.Stop()
		metrics.pending.Dec()
		reason := errorResponse
		if err != nil && timedOut.Load() {
			err, reason = errDialTimeout, dialTimedOut
		}
		agent.recordDial(err)
		if err != nil {
			metrics.failures.WithLabelValues(reason).Inc()
			done(nil, err)
			return
		}
		metrics.dials.Observe(time.Since(start).Seconds())
		done(peer, nil)
	})
	close(cancelSet)
	return cancel
}

var errDialTimeout = errors.New("timed out waiting for backend dial") // message of the reference server

// Shutdown stops accepting agents and connections. It waits until the open connections have ended or ctx is
// done, and then closes everything.
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
	conns, httpServers := maps.Clone(s.conns), s.httpServers
	s.mu.Unlock()
	for c, frontend := range conns {
		if c.Retire(); frontend { // the last data of ended connections may still be queued
			select {
			case <-c.Done():
			case <-ctx.Done():
			}
		}
	}
	for c := range conns {
		c.Close(nil)
	}
	for _, server := range httpServers {
		_ = server.Close()
	}
}
