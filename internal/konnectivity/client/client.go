// Package client is the API server's side of a tunnel by GRPC: one connection to the tunnel server, and on it a Proxy stream for each
// connection that goes through (upstream's opens a connection for each).
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
	// keepAlive is how long a connection is silent before it is pinged: what grpc-go allows without being told otherwise.
	keepAlive = 5 * time.Minute
	// trellisKeepAlive is the same where the tunnel server is known to be Trellis'.
	trellisKeepAlive = 30 * time.Second
	// connectTimeout is how long it takes at most to connect to the tunnel server.
	connectTimeout = 10 * time.Second
	// minSilence is how long a dial waits at least before a connection that says nothing is taken to be dead: much longer than a round
	// trip, and less than a second, which is the timeout of some webhooks.
	minSilence = 500 * time.Millisecond
	// reconnectInterval is how long it takes at least from one connection that is left for another server to the next.
	reconnectInterval = time.Second
)

var errStreamEnded = errors.New("the tunnel server has ended the connection")

// Client dials through a tunnel.
type Client struct {
	connect func(context.Context) (net.Conn, error)

	mu            sync.Mutex
	conn          *h2.Conn
	conns         map[*h2.Conn]bool // it, and those before it that still have streams
	opening       chan struct{}     // closed when an attempt to connect has ended
	openErr       error             // it
	closed        bool
	lastReconnect time.Time // when a connection was last given up for want of agents
}

// New returns a Client that connects to the tunnel server by connect when it first dials, and again when that connection has gone.
func New(connect func(context.Context) (net.Conn, error)) *Client {
	return &Client{connect: connect, conns: map[*h2.Conn]bool{}}
}

// Close closes the connection to the tunnel server, and all that goes through it or went through one before it.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for conn := range c.conns {
		conn.Close(nil)
	}
}

// DialContext connects to an address by TCP, from an agent of the tunnel server. The connection is a *tunnel.Conn.
func (c *Client) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if network != "tcp" {
		return nil, fmt.Errorf("a tunnel has no connections of %s", network)
	}
	for again := false; ; again = true {
		conn, err := c.current(ctx)
		if err != nil {
			return nil, fmt.Errorf("connect to the tunnel server: %w", err)
		}
		began := time.Now()
		out, err := dial(ctx, conn, address)
		if errors.Is(err, h2.ErrTooManyStreams) {
			conn.Retire() // what it has goes on
		}
		if !again && (errors.Is(err, h2.ErrGoingAway) || errors.Is(err, h2.ErrRefused) || errors.Is(err, h2.ErrTooManyStreams) || isNoAgent(err) && c.reconnect(conn)) {
			continue // it takes no more streams, or has nobody to dial; another may
		}
		if err != nil && ctx.Err() != nil && time.Since(began) >= minSilence && !conn.ReceivedSince(began) {
			conn.Retire() // the other end may be gone without a word: the next dial connects anew
		}
		return out, err
	}
}

func isNoAgent(err error) bool { return err != nil && err.Error() == wire.NoAgent }

// reconnect has the next dial connect anew, as that may lead to a server that has agents; false: that was tried a moment ago. What goes
// through the connection goes on.
func (c *Client) reconnect(from *h2.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != from || !from.Usable() { // another dial has seen to it
		return true
	}
	if time.Since(c.lastReconnect) < reconnectInterval {
		return false
	}
	c.lastReconnect = time.Now()
	from.Retire()
	return true
}

// current returns the connection, or connects, once. All who wait for that share the attempt.
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

// open connects, for all who wait.
func (c *Client) open(opened chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	wire, err := c.connect(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(opened)
	if c.opening = nil; c.closed && err == nil {
		_ = wire.Close()
		err = net.ErrClosed
	}
	if c.openErr = err; err != nil {
		return
	}
	if c.conn != nil {
		c.conn.Retire()
	}
	c.conn = h2.NewClient(wire, h2.Options{})
	c.conn.KeepAlive(keepAlive)
	c.conns[c.conn] = true
	go c.run(c.conn)
}

func (c *Client) run(conn *h2.Conn) {
	_ = conn.Run() // those who dial see how it ended
	c.mu.Lock()
	delete(c.conns, conn)
	c.mu.Unlock()
}

// dialStream is a stream on its way to become a connection.
type dialStream struct {
	tunnel.Packets
}

func dial(ctx context.Context, conn *h2.Conn, address string) (net.Conn, error) {
	d := &dialStream{}
	answered := make(chan error, 1)
	var out net.Conn
	stream, err := conn.Open(func(s *h2.Stream) h2.Receiver {
		d.Bind(s)
		return d
	}, wire.Request(wire.ProxyMethod, "tunnel", false, wire.HalfClose, wire.HalfCloseYes), false)
	if err != nil {
		return nil, err
	}
	cancel := d.Dial(address, func(other tunnel.UnpairedEndpoint, err error) {
		if err == nil {
			out = tunnel.NewConn(other, address)
		}
		answered <- err
	})
	select {
	case err = <-answered:
	case <-ctx.Done():
		cancel()
		if err = <-answered; err == nil {
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
		d.Close(cmp.Or(err, errStreamEnded)) // what is over in order has been closed by a packet
		s.Close(nil)
	}
}
