package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2/hpack"
	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
	"github.com/trellis-k8s/trellis/internal/tlsbatch"
)

const (
	// connectTimeout is how long it takes at most to connect to a server, TLS and its first answer included.
	connectTimeout = 20 * time.Second
	// politePing is more than how often the reference's server lets itself be pinged, 30 s.
	politePing = 40 * time.Second
)

// Options say who an agent is, and how it behaves.
type Options struct {
	// ID is the agent's; Identifiers what destinations it is for, URL-encoded (host=, cidr=, ipv4=, ipv6=, default-route=).
	ID, Identifiers string
	// Token is read at each connection, to say who the agent is; nil: it has a certificate.
	Token func() (string, error)
	// TLS is how servers are connected to. It has a ServerName.
	TLS *tls.Config
	// KeepaliveTime is how long a server is silent before it is pinged.
	KeepaliveTime time.Duration
	// Dial opens connections to destinations.
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	Metrics *Metrics
}

// Session is a tunnel to one server.
type Session struct {
	packets tunnel.Packets
	options Options
	conn    *h2.Conn
	stream  *h2.Stream
	id      string // of the server
	count   int    // of servers, as it says
	ours    bool   // it asks for connections by CONNECT
	dialing atomic.Int64

	once    sync.Once
	welcome chan error // what the server has answered
}

// Connect opens a tunnel to the server at an address (host:port). The error is one of the connection, or the server's.
func Connect(ctx context.Context, address string, o Options) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	tcp, err := dialServer(ctx, address, o.TLS)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(tlsbatch.Conn(tcp), o.TLS)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = tcp.Close()
		return nil, err
	}
	return begin(ctx, conn, address, o)
}

// begin opens a tunnel on a connection.
func begin(ctx context.Context, conn net.Conn, address string, o Options) (*Session, error) {
	s := &Session{options: o, welcome: make(chan error, 1)}
	s.packets.Answer, s.packets.Shared, s.packets.Numbers = s.dial, true, &o.Metrics.last
	s.packets.Stalled, s.packets.Saw = o.Metrics.stalled.Inc, o.Metrics.saw
	s.conn = h2.NewClient(conn, h2.Options{Tunnel: true, Accept: s.accept})
	s.packets.Over = s.over
	go s.conn.Run()
	if err := s.greet(ctx, address); err != nil {
		s.conn.Close(err)
		return nil, err
	}
	return s, nil
}

// greet says who this agent is, and waits for the answer.
func (s *Session) greet(ctx context.Context, address string) error {
	metadata := []string{wire.AgentID, s.options.ID, wire.AgentIdentifiers, s.options.Identifiers, wire.Tunnel, wire.ByConnect}
	if s.options.Token != nil {
		token, err := s.options.Token()
		if err != nil {
			return fmt.Errorf("read the token: %w", err)
		}
		metadata = append(metadata, wire.Authorization, "Bearer "+token)
	}
	_, err := s.conn.Open(func(stream *h2.Stream) h2.Receiver {
		s.stream = stream
		s.packets.Bind(stream)
		return receiver{&s.packets, s}
	}, wire.Request(wire.Connect, address, true, metadata...), false)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("the server does not answer: %w", context.Cause(ctx))
	case err := <-s.welcome:
		return err
	}
}

// ServerID is that of the server.
func (s *Session) ServerID() string { return s.id }

// ServerCount is how many servers there are, as this one says.
func (s *Session) ServerCount() int { return s.count }

// Ours says that the server is Trellis', to which each of an agent's sessions is as good as another. The reference's looks at the first alone.
func (s *Session) Ours() bool { return s.ours }

// Leaving is closed when the server takes nothing new, or the tunnel has ended.
func (s *Session) Leaving() <-chan struct{} { return s.conn.Leaving() }

// Run returns when the tunnel has ended, and why. That of a server that is leaving ends with its last connection: the reference's waits for it.
func (s *Session) Run() error {
	<-s.conn.Leaving()
	if s.conn.Err() == nil {
		klog.InfoS("A server is leaving: its connections go on until they end", "server", s.id, "open", s.Open())
	}
	return s.Finish()
}

// Finish ends the tunnel when no connection goes through it, and returns why it has ended.
func (s *Session) Finish() error {
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for open := 1; open > 0; open = s.Open() {
		select {
		case <-s.conn.Done():
			return s.conn.Err()
		case <-tick.C:
		}
	}
	s.stream.End(nil) // after what is queued; the server answers by its own end
	select {
	case <-s.conn.Done():
	case <-time.After(drainLimit):
		s.Close()
	}
	return s.conn.Err()
}

// Open is how many connections go through it, or are about to.
func (s *Session) Open() int {
	dialing := int(s.dialing.Load()) // first: one that has come since is open
	return max(dialing+s.packets.Open(), s.conn.Streams()-1)
}

// Drain asks the server for no new connections.
func (s *Session) Drain() { s.packets.Drain() }

// Close ends the tunnel, and all connections through it.
func (s *Session) Close() { s.conn.Close(nil) }

// accept takes a stream by which the server asks for a connection.
func (s *Session) accept(stream *h2.Stream, header []hpack.HeaderField) h2.Receiver {
	return tunnel.Accept(stream, header, s.dial)
}

// dial opens a connection to a destination.
func (s *Session) dial(address string, answered func(tunnel.Joint, error)) (cancel func()) {
	ctx, cancel := context.WithTimeout(context.Background(), endpointDialTimeout)
	began := time.Now()
	s.dialing.Add(1)
	go func() {
		defer cancel()
		defer s.dialing.Add(-1)
		conn, err := s.options.Dial(ctx, "tcp", address)
		m := s.options.Metrics
		if m.Dialled(time.Since(began), err); err != nil {
			answered(nil, err)
			return
		}
		m.open.Add(1)
		answered(tunnel.NewSocket(conn, func() { m.open.Add(-1) }), nil)
	}()
	return cancel
}

// over closes the connection, as its packets are at their end.
func (s *Session) over(err error) {
	s.once.Do(func() { s.welcome <- err })
	s.conn.Close(err)
}

// receiver is a Session as its stream sees it: its packets, and the header that answers.
type receiver struct {
	*tunnel.Packets
	session *Session
}

// Header implements h2.Receiver: the server's answer, or the end.
func (r receiver) Header(_ *h2.Stream, fields []hpack.HeaderField, end bool) {
	err := wire.Status(fields)
	if err == nil && end {
		err = errors.New("the server has ended the tunnel")
	}
	r.session.once.Do(func() {
		if err == nil {
			err = r.session.read(fields)
		}
		r.session.welcome <- err
	})
	if err != nil {
		r.Close(err)
	}
}

// read reads what the server says of itself.
func (s *Session) read(fields []hpack.HeaderField) error {
	id, ok := wire.Field(fields, wire.ServerID)
	count, counted := wire.Field(fields, wire.ServerCount)
	if !ok || !counted {
		return errors.New("the server does not say its " + wire.ServerID + " and " + wire.ServerCount)
	}
	n, err := strconv.Atoi(count)
	if err != nil {
		return fmt.Errorf("the server says a %s that is no number: %q", wire.ServerCount, count)
	}
	s.id, s.count = id, n
	every := s.options.KeepaliveTime
	by, _ := wire.Field(fields, wire.Tunnel)
	if s.ours = by == wire.ByConnect; !s.ours {
		every = max(every, politePing)
	}
	s.conn.KeepAlive(every)
	return nil
}
