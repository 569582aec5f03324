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
	// connectTimeout limits connecting to a server, including TLS and the first response.
	connectTimeout = 20 * time.Second
	// minReferenceKeepalive is the minimum interval of pings to a reference server, which closes connections that
	// are pinged more often than every 30 s.
	minReferenceKeepalive = 40 * time.Second
)

// Options configure the sessions of an agent.
type Options struct {
	// ID is the agent's ID. Identifiers lists the destinations that it serves, URL-encoded (host=, cidr=,
	// ipv4=, ipv6=, default-route=).
	ID, Identifiers string
	// Token returns the token that authenticates the agent. It is called for each connection. nil means that
	// the agent has a client certificate.
	Token func() (string, error)
	// TLS configures connections to servers. It must have a ServerName.
	TLS *tls.Config
	// KeepaliveTime is the silence after which a server is pinged.
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
	id              string // the server's ID
	count           int    // the number of servers, as reported by the server
	serverIsTrellis bool   // the server requests connections with CONNECT
	dialing         atomic.Int64

	once          sync.Once
	handshakeDone chan error // receives the result of the handshake
}

// Connect opens a tunnel to the server at an address (host:port). It returns an error if the connection fails or
// the server rejects the agent.
func Connect(ctx context.Context, address string, options Options) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	tcp, err := dialServer(ctx, address, options.TLS)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(tlsbatch.Conn(tcp), options.TLS)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = tcp.Close()
		return nil, err
	}
	return newSession(ctx, conn, address, options)
}

// newSession opens a tunnel on a connection.
func newSession(ctx context.Context, conn net.Conn, address string, options Options) (*Session, error) {
	s := &Session{options: options, handshakeDone: make(chan error, 1)}
	s.packets.Dialer, s.packets.Shared, s.packets.ConnIDs = s.dial, true, &options.Metrics.lastConnID
	s.packets.OnStall, s.packets.OnPacket = options.Metrics.stalled.Inc, options.Metrics.onPacket
	s.conn = h2.NewClient(conn, h2.Options{EnableTunnel: true, Accept: s.accept})
	s.packets.OnEnd = s.packetsEnded
	go s.conn.Run()
	if err := s.handshake(ctx, address); err != nil {
		s.conn.Close(err)
		return nil, err
	}
	return s, nil
}

// handshake sends the agent's ID and token, and waits for the server's response.
func (s *Session) handshake(ctx context.Context, address string) error {
	metadata := []string{
		wire.AgentID, s.options.ID,
		wire.AgentIdentifiers, s.options.Identifiers,
		wire.Tunnel, wire.TunnelByConnect,
	}

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
		return fmt.Errorf("server does not answer: %w", context.Cause(ctx))
	case err := <-s.handshakeDone:
		return err
	}
}

// ServerID returns the server's ID.
func (s *Session) ServerID() string { return s.id }

// ServerCount returns the number of servers, as reported by this server.
func (s *Session) ServerCount() int { return s.count }

// ServerIsTrellis reports whether the server is a Trellis server, which can use any session of an agent. A
// reference server uses only the first one.
func (s *Session) ServerIsTrellis() bool { return s.serverIsTrellis }

// GoingAway returns a channel that is closed when the server accepts no new connections or the tunnel has
// ended.
func (s *Session) GoingAway() <-chan struct{} { return s.conn.GoingAway() }

// Wait blocks until the tunnel has ended and returns the reason. After the server has sent GOAWAY, Wait closes the
// tunnel when the last tunnelled connection has ended. A reference server waits for the agent to do so.
func (s *Session) Wait() error {
	<-s.conn.GoingAway()
	if s.conn.Err() == nil {
		klog.InfoS("A server accepts no new connections. Open connections continue",
			"server", s.id, "open", s.ConnCount())

	}
	return s.CloseWhenIdle()
}

// CloseWhenIdle ends the tunnel when it has no open connections, and returns the reason why the tunnel has ended.
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
	s.stream.End(nil) // after the queued data; the server then ends the stream too
	select {
	case <-s.conn.Done():
	case <-time.After(drainTimeout):
		s.Close()
	}
	return s.conn.Err()
}

// ConnCount returns the number of open connections and pending dials.
func (s *Session) ConnCount() int {
	dialing := int(s.dialing.Load()) // read first, so that a dial that ends now is counted at least once
	return max(dialing+s.packets.ConnCount(), s.conn.StreamCount()-1)
}

// Drain sends DRAIN, so that the server requests no more connections.
func (s *Session) Drain() { s.packets.Drain() }

// Close ends the tunnel and all its connections.
func (s *Session) Close() { s.conn.Close(nil) }

// accept accepts a stream with which the server requests a connection.
func (s *Session) accept(stream *h2.Stream, header []hpack.HeaderField) h2.Receiver {
	return tunnel.Accept(stream, header, s.dial)
}

// dial opens a connection to a destination.
func (s *Session) dial(address string, done func(tunnel.UnpairedEndpoint, error)) (cancel func()) {
	ctx, cancel := context.WithTimeout(context.Background(), endpointDialTimeout)
	start := time.Now()
	s.dialing.Add(1)
	go func() {
		defer cancel()
		defer s.dialing.Add(-1)
		conn, err := s.options.Dial(ctx, "tcp", address)
		metrics := s.options.Metrics
		if metrics.ObserveDial(time.Since(start), err); err != nil {
			done(nil, err)
			return
		}
		metrics.openConns.Add(1)
		done(tunnel.NewSocket(conn, func() { metrics.openConns.Add(-1) }), nil)
	}()
	return cancel
}

// packetsEnded closes the connection when the stream of packets has ended.
func (s *Session) packetsEnded(err error) {
	s.once.Do(func() { s.handshakeDone <- err })
	s.conn.Close(err)
}

// streamReceiver receives the events of the session's stream. It passes packets to Packets and handles the
// response header.
type streamReceiver struct {
	*tunnel.Packets
	session *Session
}

// Header implements h2.Receiver. The first header is the server's response.
func (r streamReceiver) Header(_ *h2.Stream, fields []hpack.HeaderField, end bool) {
	err := wire.StatusError(fields)
	if err == nil && end {
		err = errors.New("server has ended the tunnel")
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

// readServerInfo reads the server's ID, count and transport from the response header.
func (s *Session) readServerInfo(fields []hpack.HeaderField) error {
	id, hasID := wire.Field(fields, wire.ServerID)
	count, hasCount := wire.Field(fields, wire.ServerCount)
	if !hasID || !hasCount {
		return errors.New("invalid response: " + wire.ServerID + " or " + wire.ServerCount + " is missing")
	}
	n, err := strconv.Atoi(count)
	if err != nil {
		return fmt.Errorf("invalid response: %s %q is not a number", wire.ServerCount, count)
	}
	s.id, s.count = id, n
	interval := s.options.KeepaliveTime
	transport, _ := wire.Field(fields, wire.Tunnel)
	if s.serverIsTrellis = transport == wire.TunnelByConnect; !s.serverIsTrellis {
		interval = max(interval, minReferenceKeepalive)
	}
	s.conn.KeepAlive(interval)
	return nil
}
