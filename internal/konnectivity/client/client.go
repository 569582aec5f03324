// Package client is the API server's client of a tunnel server that speaks gRPC. It opens one connection to the
// tunnel server and, on that connection, a Proxy stream for each tunnelled connection. The reference client opens
// a separate connection to the tunnel server for each tunnelled connection. The package must not import the server
// or the agent.
package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/konnectivity/tunnel"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

const (
	// keepAlive is the silence after which the tunnel server is pinged. grpc-go servers accept this interval by
	// default.
	keepAlive = 5 * time.Minute
	// trellisKeepAlive replaces keepAlive if the tunnel server is a Trellis server.
	trellisKeepAlive = 30 * time.Second
	// connectTimeout limits connecting to the tunnel server.
	connectTimeout = 10 * time.Second
	// minSilence is the minimum duration of a failed dial after which a silent connection is considered dead. It
	// is much longer than a round trip. It is shorter than a second, because some webhooks have a timeout of a
	// second.
	minSilence = 500 * time.Millisecond
	// reconnectInterval is the minimum time between two reconnections that look for a server with agents.
	reconnectInterval = time.Second
)

var errStreamEnded = errors.New("tunnel server has ended the stream")

// Client opens connections through a tunnel server.
type Client struct {
	connect func(context.Context) (net.Conn, error)

	mu            sync.Mutex
	conn          *h2.Conn          // the current connection
	conns         map[*h2.Conn]bool // the current connection, and earlier ones that still have streams
	opening       chan struct{}     // closed when the current attempt to connect has ended; nil if there is none
	openErr       error             // the result of the last attempt to connect
	closed        bool
	lastReconnect time.Time // when a connection was last replaced for lack of agents
}

// New returns a Client. On its first dial, the Client calls the function connect, which must connect to the tunnel
// server. It calls connect again after the connection has ended.
func New(connect func(context.Context) (net.Conn, error)) *Client {
	return &Client{connect: connect, conns: map[*h2.Conn]bool{}}
}

// Close closes all connections to the tunnel server and everything tunnelled through them.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for conn := range c.conns {
		conn.Close(nil)
	}
}

// DialContext opens a tunnelled TCP connection to address. An agent of the tunnel server connects to the address.
// DialContext returns a *tunnel.Conn. If the connection to the tunnel server is lost during the dial, DialContext dials
// again once, on a new connection.
func (c *Client) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if network != "tcp" {
		return nil, fmt.Errorf("unsupported network %q: want tcp", network)
	}
	for retried := false; ; retried = true {
		conn, err := c.current(ctx)
		if err != nil {
			return nil, fmt.Errorf("connect to the tunnel server: %w", err)
		}
		start := time.Now()
		out, err := dial(ctx, conn, address)
		if errors.Is(err, h2.ErrTooManyStreams) {
			conn.Retire() // its open streams continue
		}
		lost := err != nil && ctx.Err() == nil && conn.Err() != nil // for example, the tunnel server has restarted
		if !retried && (lost || errors.Is(err, h2.ErrGoingAway) || errors.Is(err, h2.ErrRefused) ||
			errors.Is(err, h2.ErrTooManyStreams) || isNoAgent(err) && c.reconnect(conn)) {
			continue // another connection may lead to a server that accepts streams and has agents
		}
		if err != nil && ctx.Err() != nil && time.Since(start) >= minSilence && !conn.ReceivedSince(start) {
			conn.Retire() // the server may be gone without closing the connection, so the next dial reconnects
		}
		return out, err
	}
}

func isNoAgent(err error) bool { return err != nil && err.Error() == wire.NoAgent }

// reconnect makes the next dial use a new connection, which may lead to a server with agents. Open streams of
// the old connection continue. It reports false if the last reconnection was too recent.
func (c *Client) reconnect(old *h2.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != old || !old.Usable() { // another dial has reconnected
		return true
	}
	if time.Since(c.lastReconnect) < reconnectInterval {
		return false
	}
	c.lastReconnect = time.Now()
	old.Retire()
	return true
}

// current returns the current connection, or opens one. Concurrent callers share one attempt.
func (c *Client) current(ctx context.Context) (*h2.Conn, error) {
	for tried := false; ; tried = true {
		c.mu.Lock()
		if c.conn != nil && c.conn.Usable() {
			defer c.mu.Unlock()
			return c.conn, nil
		}
		if tried && c.conn != nil {
			defer c.mu.Unlock()
			return nil, cmp.Or(c.conn.Err(), h2.ErrGoingAway)
		}
		opening := c.opening
		if opening == nil {
			opening = make(chan struct{})
			c.opening = opening
			go c.open(opening)
		}
		c.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-opening:
		}
		c.mu.Lock()
		err := c.openErr
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
}

// open connects to the tunnel server on behalf of all waiting callers.
func (c *Client) open(opened chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	netConn, err := c.connect(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(opened)
	if c.opening = nil; c.closed && err == nil {
		_ = netConn.Close()
		err = net.ErrClosed
	}
	if c.openErr = err; err != nil {
		return
	}
	if c.conn != nil {
		c.conn.Retire()
	}
	c.conn = h2.NewClient(netConn, h2.Options{})
	c.conn.KeepAlive(keepAlive)
	c.conns[c.conn] = true
	go c.run(c.conn)
}

func (c *Client) run(conn *h2.Conn) {
	_ = conn.Run() // dials see the error
	c.mu.Lock()
	delete(c.conns, conn)
	c.mu.Unlock()
}

// dialStream is the stream of a tunnelled connection.
type dialStream struct {
	tunnel.Packets
}

func dial(ctx context.Context, conn *h2.Conn, address string) (net.Conn, error) {
	d := &dialStream{}
	result := make(chan error, 1)
	var out net.Conn
	stream, err := conn.Open(func(s *h2.Stream) h2.Receiver {
		d.Bind(s)
		return d
	}, wire.Request(wire.ProxyMethod, "tunnel", false, wire.HalfClose, wire.HalfCloseYes), false)
	if err != nil {
		return nil, err
	}
	cancel := d.Dial(address, func(peer tunnel.UnpairedEndpoint, err error) {
		if err == nil {
			out = tunnel.NewConn(peer, address)
		}
		result <- err
	})
	select {
	case err = <-result:
	case <-ctx.Done():
		cancel()
		if err = <-result; err == nil {
			_ = out.Close()
		}
		err = context.Cause(ctx)
	}
	if err != nil {
		stream.Close(nil)
		return nil, err
	}
	return out, nil
}

// Header implements h2.Receiver.
func (d *dialStream) Header(s *h2.Stream, fields []hpack.HeaderField, end bool) {
	if half, _ := wire.Field(fields, wire.HalfClose); half == wire.HalfCloseYes {
		d.HalfClose = true
		s.Conn().KeepAlive(trellisKeepAlive)
	}
	if err := wire.StatusError(fields); err != nil || end {
		d.Close(cmp.Or(err, errStreamEnded)) // no effect if a packet has already closed the connection
		s.Close(nil)
	}
}
