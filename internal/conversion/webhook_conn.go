package conversion

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

// line is the connections to those who stand behind a webhook at a time.
type line struct {
	client    *http.Client
	transport *http.Transport // client's
	broke     func()          // is told of a connection that breaks; must not block
	retired   atomic.Bool
}

// newLine returns a line of connections that dial opens.
func (c *caller) newLine() *line {
	l := &line{transport: c.transport.Clone(), broke: func() { c.config.Broke(c.text) }}
	l.transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := c.dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &connection{Conn: conn, line: l}, nil
	}
	l.client = &http.Client{
		Transport:     l.transport,
		Timeout:       c.timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return l
}

// retire closes the connections that are idle, for good. Calls under way go on.
func (l *line) retire() {
	l.retired.Store(true)
	l.transport.CloseIdleConnections()
}

// connection is one to a webhook, and tells when it breaks: the webhook has answered on it, and it ends though neither this
// side wanted that nor the webhook has said "Connection: close". Who answers the next call may be another program.
//
// That it ends shows where the transport closes it: nothing can be read any longer, or, with HTTP/2, the webhook has told it
// to go away.
type connection struct {
	net.Conn
	line *line

	mu       sync.Mutex
	http2    bool
	calls    int       // under way
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

// take notes that a call begins on the connection.
func (c *connection) take(http2 bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.http2 = http2
	c.calls++
}

// replied notes that a response has come.
func (c *connection) replied(resp *http.Response) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered = time.Now()
	c.over = c.over || resp.Close
}

// leave notes that a call is over; given up by this side, it ends the connection unless that is of HTTP/2.
func (c *connection) leave(givenUp bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls--
	c.over = c.over || givenUp && !c.http2
	c.settle()
}

// settle tells of the end once it has come, and it is known how the calls went.
func (c *connection) settle() {
	if !c.closed || c.calls > 0 || c.over {
		return
	}
	c.over = true
	if !c.line.retired.Load() && time.Since(c.answered) < idleTimeout {
		c.line.broke()
	}
}

// take finds the connection that a call begins on.
func take(conn net.Conn) *connection {
	http2 := false
	for {
		switch c := conn.(type) {
		case *connection:
			c.take(http2)
			return c
		case *tls.Conn: // to the webhook, or below it to a proxy
			http2 = http2 || c.ConnectionState().NegotiatedProtocol == "h2"
			conn = c.NetConn()
		default: // none of a line's
			return &connection{}
		}
	}
}
