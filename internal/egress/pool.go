package egress

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// idleTimeout is how long a connection is kept that nobody uses.
const idleTimeout = 90 * time.Second

// pool is the connections to the endpoints of a destination, as long as these do not change.
type pool struct {
	*http.Transport
	generation uint64
	broke      func() // is told of a connection that breaks
	retired    atomic.Bool
}

// newPool returns a pool of connections that the DialContext of a transport opens.
func newPool(of *http.Transport, generation uint64, broke func()) *pool {
	p := &pool{Transport: of.Clone(), generation: generation, broke: broke}
	p.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := of.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &connection{Conn: conn, pool: p}, nil
	}
	return p
}

// retire closes the connections that are idle, for good. Requests under way go on.
func (p *pool) retire() {
	p.retired.Store(true)
	p.CloseIdleConnections()
}

// connection is one of a pool, and tells when it breaks: there has been an answer on it, and it ends though neither this side
// wanted that nor the other has said "Connection: close". Who answers the next request may be another program.
//
// That it ends shows where http.Transport closes it: nothing can be read any longer, or, with HTTP/2, the other side has sent
// GOAWAY.
type connection struct {
	net.Conn
	pool *pool

	mu       sync.Mutex
	http2    bool
	requests int       // under way
	answered time.Time // when a response last came; zero: never
	closed   bool
	over     bool // its end is of no more interest
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.mu.Lock()
	c.closed = true
	c.settle()
	c.mu.Unlock()
	return c.Conn.Close()
}

// take notes that a request begins on the connection.
func (c *connection) take(http2 bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.http2 = http2
	c.requests++
}

// replied notes that a response has come.
func (c *connection) replied(resp *http.Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered = time.Now()
	c.over = c.over || resp.Close
}

// leave notes that a request is over; given up by this side, it ends the connection unless that is of HTTP/2.
func (c *connection) leave(givenUp bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests--
	c.over = c.over || givenUp && !c.http2
	c.settle()
}

// settle tells of the end once it has come, and it is known how the requests went.
func (c *connection) settle() {
	if !c.closed || c.requests > 0 || c.over {
		return
	}
	c.over = true
	if !c.pool.retired.Load() && time.Since(c.answered) < idleTimeout {
		c.pool.broke()
	}
}

// take finds the connection that a request begins on.
func take(conn net.Conn) *connection {
	http2 := false
	for {
		switch c := conn.(type) {
		case *connection:
			c.take(http2)
			return c
		case *tls.Conn: // to the destination, or below it to a proxy
			http2 = http2 || c.ConnectionState().NegotiatedProtocol == "h2"
			conn = c.NetConn()
		default: // none of a pool's
			return &connection{}
		}
	}
}
