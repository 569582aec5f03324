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
	// minReferenceKeepalive is more than how often the reference's server lets itself be pinged, 30 s.
	minReferenceKeepalive = 40 * time.Second
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
	packets         tunnel.Packets
	options         Options
	conn            *h2.Conn
	stream          *h2.Stream
	id              string // of the server
	count           int    // of servers, as it says
	serverIsTrellis bool   // it asks for connections by CONNECT
	dialing         atomic.Int64

	once          sync.Once
	handshakeDone chan error // what the server has answered
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
	return newSession(ctx, conn, address, o)
}

// newSession opens a tunnel on a connection.
func newSession(ctx context.Context, conn net.Conn, address string, o Options) (*Session, error) {
	s := &Session{options: o, handshakeDone: make(chan error, 1)}
	s.packets.Dialer, s.packets.Shared, s.packets.ConnIDs = s.dial, true, &o.Metrics.lastConnID
	s.packets.OnStall, s.packets.OnPacket = o.Metrics.stalled.Inc, o.Metrics.onPacket
	s.conn = h2.NewClient(conn, h2.Options{EnableTunnel: true, Accept: s.accept})
	s.packets.OnEnd = s.packetsEnded
	go s.conn.Run()
	if err := s.handshake(ctx, address); err != nil {
		s.conn.Close(err)
		return nil, err
	}
	return s, nil
}

// handshake says who this agent is, and waits for the answer.
func (s *Session) handshake(ctx context.Context, address string) error {
	metadata := []string{wire.AgentID, s.options.ID, wire.AgentIdentifiers, s.options.Identifiers, wire.Tunnel, wire.TunnelByConnect}
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
		return streamReceiver{&s.packets, s}
	}, wire.Request(wire.ConnectMethod, address, true, metadata...), false)
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("the server does not answer: %w", context.Cause(ctx))
	case err := <-s.handshakeDone:
		return err
	}
}

// ServerID is that of the server.
func (s *Session) ServerID() string { return s.id }

// ServerCount is how many servers there are, as this one says.
func (s *Session) ServerCount() int { return s.count }

// ServerIsTrellis says that the server is Trellis', to which each of an agent's sessions is as good as another. The reference's looks at the first alone.
func (s *Session) ServerIsTrellis() bool { return s.serverIsTrellis }

// GoingAway is closed when the server takes nothing new, or the tunnel has ended.
func (s *Session) GoingAway() <-chan struct{} { return s.conn.GoingAway() }

// Wait returns when the tunnel has ended, and why. That of a server that is leaving ends with its last connection: the reference's waits for it.
func (s *Session) Wait() error {
	<-s.conn.GoingAway()
	if s.conn.Err() == nil {
		klog.InfoS("A server is leaving: its connections go on until they end", "server", s.id, "open", s.ConnCount())
	}
	return s.CloseWhenIdle()
}

// CloseWhenIdle ends the tunnel when no connection goes through it, and returns why it has ended.
func (s *Session) CloseWhenIdle() error {
	tick := time.NewTicker(drainPollInterval)
	defer tick.Stop()
	for open := 1; open > 0; open = s.ConnCount() {
		select {
		case <-s.conn.Done():
			return s.conn.Err()
		case <-tick.C:
		}
	}
	s.stream.End(nil) // after what is queued; the server answers by its own end
	select {
	case <-s.conn.Done():
	case <-time.After(drainTimeout):
		s.Close()
	}
	return s.conn.Err()
}

// ConnCount is how many connections go through it, or are about to.
func (s *Session) ConnCount() int {
	dialing := int(s.dialing.Load()) // first: one that has come since is open
	return max(dialing+s.packets.ConnCount(), s.conn.StreamCount()-1)
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
func (s *Session) dial(address string, answered func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
	ctx, cancel := context.WithTimeout(context.Background(), endpointDialTimeout)
	began := time.Now()
	s.dialing.Add(1)
	go func() {
		defer cancel()
		defer s.dialing.Add(-1)
		conn, err := s.options.Dial(ctx, "tcp", address)
		m := s.options.Metrics
		if m.ObserveDial(time.Since(began), err); err != nil {
			answered(nil, err)
			return
		}
		m.openConns.Add(1)
		answered(tunnel.NewSocket(conn, func() { m.openConns.Add(-1) }), nil)
	}()
	return cancel
}

// packetsEnded closes the connection, as its packets are at their end.
func (s *Session) packetsEnded(err error) {
	s.once.Do(func() { s.handshakeDone <- err })
	s.conn.Close(err)
}

// streamReceiver is a Session as its stream sees it: its packets, and the header that answers.
type streamReceiver struct {
	*tunnel.Packets
	session *Session
}

// Header implements h2.Receiver: the server's answer, or the end.
func (r streamReceiver) Header(_ *h2.Stream, fields []hpack.HeaderField, end bool) {
	err := wire.StatusError(fields)
	if err == nil && end {
		err = errors.New("the server has ended the tunnel")
	}
	r.session.once.Do(func() {
		if err == nil {
			err = r.session.readServerInfo(fields)
		}
		r.session.handshakeDone <- err
	})
	if err != nil {
		r.Close(err)
	}
}

// readServerInfo reads what the server says of itself.
func (s *Session) readServerInfo(fields []hpack.HeaderField) error {
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
	if s.serverIsTrellis = by == wire.TunnelByConnect; !s.serverIsTrellis {
		every = max(every, minReferenceKeepalive)
	}
	s.conn.KeepAlive(every)
	return nil
}
