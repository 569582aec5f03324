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

// idleTimeout is how long an unused connection stays open.
const idleTimeout = 90 * time.Second

// pool holds the connections to one generation of a destination's endpoints. A new pool replaces it when the
// endpoints change.
type pool struct {
	*http.Transport
	generation   uint64
	disconnected func() // called when a connection breaks
	retired      atomic.Bool
}

// newPool returns a pool of connections that template.DialContext opens.
func newPool(template *http.Transport, generation uint64, disconnected func()) *pool {
	p := &pool{Transport: template.Clone(), generation: generation, disconnected: disconnected}
	p.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := template.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &connection{Conn: conn, pool: p}, nil
	}
	return p
}

// retire closes idle connections permanently. Requests in flight continue.
func (p *pool) retire() {
	p.retired.Store(true)
	p.CloseIdleConnections()
}

// connection is a connection of a pool. It notifies the pool when it breaks, because another program may serve the
// next connection. A connection breaks if it ends after a response, although neither side requested its end and
// the response had no "Connection: close" header.
//
// http.Transport closes the connection when nothing more can be read, or when an HTTP/2 peer has sent GOAWAY.
type connection struct {
	net.Conn
	pool *pool

	mu       sync.Mutex
	http2    bool
	requests int       // in flight
	answered time.Time // time of the last response, zero if there was none
	closed   bool
	ignored  bool // the end of the connection is expected or has been reported
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.mu.Lock()
	c.closed = true
	c.reportBroken()
	c.mu.Unlock()
	return c.Conn.Close()
}

// begin records that a request starts on the connection.
func (c *connection) begin(http2 bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.http2 = http2
	c.requests++
}

// responded records that a response has arrived.
func (c *connection) responded(resp *http.Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered = time.Now()
	c.ignored = c.ignored || resp.Close
}

// end records that a request has ended. If this side has abandoned the request, an HTTP/1.1 connection ends too.
func (c *connection) end(abandoned bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests--
	c.ignored = c.ignored || abandoned && !c.http2
	c.reportBroken()
}

// reportBroken reports a broken connection once it is closed and all its requests have ended.
func (c *connection) reportBroken() {
	if !c.closed || c.requests > 0 || c.ignored {
		return
	}
	c.ignored = true
	if !c.pool.retired.Load() && time.Since(c.answered) < idleTimeout {
		c.pool.disconnected()
	}
}

// beginRequest finds the connection of a pool that conn wraps, and records that a request starts on it. If conn
// does not belong to a pool, it returns an empty connection.
func beginRequest(conn net.Conn) *connection {
	http2 := false
	for {
		switch c := conn.(type) {
		case *connection:
			c.begin(http2)
			return c
		case *tls.Conn: // to the destination, or to a proxy on the way there
			http2 = http2 || c.ConnectionState().NegotiatedProtocol == "h2"
			conn = c.NetConn()
		default: // not from a pool
			return &connection{}
		}
	}
}
