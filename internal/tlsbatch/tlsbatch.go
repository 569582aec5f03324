// Package tlsbatch combines the writes of crypto/tls into fewer system calls. crypto/tls splits large data into records
// of at most 16 KiB. One system call for each record would cost more than the encryption.
package tlsbatch

import (
	"crypto/tls"
	"net"
	"sync"
	"time"
)

const (
	// fullRecord is the minimum size of a write that contains a full TLS record.
	fullRecord = 16 << 10
	// batchBytes limits the size of one write to the system, and of the data that waits for the next one.
	batchBytes = 128 << 10
	// linger is the maximum time for the peer to accept pending data when a connection is closed. crypto/tls uses
	// the same value.
	linger = 5 * time.Second
)

// Listener accepts connections for use by crypto/tls and wraps them with Conn.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Conn(c), nil
}

// Conn returns a connection that crypto/tls can use in place of c.
func Conn(c net.Conn) net.Conn { return newBatchedConn(c) }

// batchedConn is a connection for crypto/tls, which writes from one goroutine at a time. Small writes are passed
// on at once. A full record is buffered and written by another goroutine, which exits when nothing is pending. In
// the meantime, further writes are combined in a buffer of batchBytes. If the goroutine fails to write, the next
// Write returns the error.
type batchedConn struct {
	net.Conn

	mu        sync.Mutex
	changed   sync.Cond // pending, writing or failed
	pending   *[]byte   // from batchBuffers, nil if nothing is pending
	writing   bool
	unlimited bool // buffer everything and ignore deadlines
	failed    error
}

var batchBuffers = sync.Pool{New: func() any { b := make([]byte, 0, batchBytes); return &b }}

func newBatchedConn(c net.Conn) *batchedConn {
	g := &batchedConn{Conn: c}
	g.changed.L = &g.mu
	return g
}

// NetConn returns the wrapped connection, like tls.Conn.NetConn.
func (g *batchedConn) NetConn() net.Conn { return g.Conn }

// Write implements net.Conn.
func (g *batchedConn) Write(p []byte) (int, error) {
	g.mu.Lock()
	if !g.writing && !g.unlimited && len(p) < fullRecord {
		failed := g.failed
		g.mu.Unlock()
		if failed != nil {
			return 0, failed
		}
		return g.Conn.Write(p)
	}
	defer g.mu.Unlock()
	for g.failed == nil && !g.unlimited && g.pending != nil && len(*g.pending)+len(p) > batchBytes {
		g.changed.Wait()
	}
	if g.failed != nil {
		return 0, g.failed
	}
	if g.pending == nil {
		g.pending = batchBuffers.Get().(*[]byte)
	}
	*g.pending = append(*g.pending, p...)
	if !g.writing {
		g.writing = true
		go g.write()
	}
	return len(p), nil
}

// write writes pending data until there is none or a write fails.
func (g *batchedConn) write() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.pending != nil {
		b := g.pending
		g.pending = nil
		if g.failed == nil {
			g.changed.Broadcast()
			g.mu.Unlock()
			_, err := g.Conn.Write(*b)
			g.mu.Lock()
			g.failed = err
		}
		if cap(*b) == batchBytes {
			*b = (*b)[:0]
			batchBuffers.Put(b)
		}
	}
	g.writing = false
	g.changed.Broadcast()
}

// SetWriteDeadline implements net.Conn. crypto/tls sets a deadline in the past after it has sent close_notify. That
// deadline must not affect earlier data, so pending data is written first.
func (g *batchedConn) SetWriteDeadline(t time.Time) error {
	g.mu.Lock()
	unlimited := g.unlimited
	g.mu.Unlock()
	if unlimited {
		return nil
	}
	if !t.IsZero() && !t.After(time.Now()) {
		if err := g.drain(); err != nil {
			return err
		}
	}
	return g.Conn.SetWriteDeadline(t)
}

// CloseWrite calls c.CloseWrite without waiting until all data has been passed to the system, which Flush does.
// crypto/tls itself would wait 5 seconds and then lose the rest. Deadlines that are set before CloseWrite returns may
// have no effect.
func CloseWrite(c *tls.Conn) error {
	g, ok := c.NetConn().(*batchedConn)
	if !ok {
		return c.CloseWrite()
	}
	g.setUnlimited(true)
	defer g.setUnlimited(false)
	return c.CloseWrite()
}

// Flush blocks until all data written to c has been passed to the system. Only a deadline limits how long a slow peer
// can block it.
func Flush(c *tls.Conn) error {
	g, ok := c.NetConn().(*batchedConn)
	if !ok {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.writing {
		g.changed.Wait()
	}
	return g.failed
}

func (g *batchedConn) setUnlimited(unlimited bool) {
	g.mu.Lock()
	g.unlimited = unlimited
	g.mu.Unlock()
}

// drain blocks until no data is pending, or for linger.
func (g *batchedConn) drain() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.writing {
		return nil
	}
	if err := g.Conn.SetWriteDeadline(time.Now().Add(linger)); err != nil {
		return err
	}
	for g.writing {
		g.changed.Wait()
	}
	return nil
}
