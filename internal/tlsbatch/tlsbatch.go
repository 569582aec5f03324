// Package tlsbatch writes what crypto/tls makes of large pieces to the system in large pieces. crypto/tls cuts them into records of at most
// 16 KiB, each of which would be a system call of its own, and that costs more than to encrypt it.
package tlsbatch

import (
	"crypto/tls"
	"net"
	"sync"
	"time"
)

const (
	// fullRecord is what a write has at least that is part of a large piece.
	fullRecord = 16 << 10
	// gatherBytes is how much is written to the system at once, and how much more may wait meanwhile.
	gatherBytes = 128 << 10
	// linger is how long the other side may take to accept what waits when a connection is closed; crypto/tls's.
	linger = 5 * time.Second
)

// Listener accepts connections to be used by crypto/tls, as Conn makes them.
type Listener struct{ net.Listener }

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return Conn(c), nil
}

// Conn returns a connection to be used by crypto/tls in place of c.
func Conn(c net.Conn) net.Conn { return gather(c) }

// gathered is a connection as crypto/tls uses it, which writes from one goroutine at a time. What is small is written at
// once. A full record is taken over and written by a goroutine that lives as long as there is something to write; all that
// follows meanwhile, up to gatherBytes, is its next write. An error is that of the next Write, as with the buffers of the system.
type gathered struct {
	net.Conn

	mu      sync.Mutex
	changed sync.Cond // waiting or writing or failed
	waiting *[]byte   // of gatherBuffers, nil if nothing waits
	writing bool
	patient bool // takes everything over, and heeds no deadlines
	failed  error
}

var gatherBuffers = sync.Pool{New: func() any { b := make([]byte, 0, gatherBytes); return &b }}

func gather(c net.Conn) *gathered {
	g := &gathered{Conn: c}
	g.changed.L = &g.mu
	return g
}

// NetConn is the connection below, as tls.Conn's.
func (g *gathered) NetConn() net.Conn { return g.Conn }

// Write implements net.Conn.
func (g *gathered) Write(p []byte) (int, error) {
	g.mu.Lock()
	if !g.writing && !g.patient && len(p) < fullRecord {
		failed := g.failed
		g.mu.Unlock()
		if failed != nil {
			return 0, failed
		}
		return g.Conn.Write(p)
	}
	defer g.mu.Unlock()
	for g.failed == nil && !g.patient && g.waiting != nil && len(*g.waiting)+len(p) > gatherBytes {
		g.changed.Wait()
	}
	if g.failed != nil {
		return 0, g.failed
	}
	if g.waiting == nil {
		g.waiting = gatherBuffers.Get().(*[]byte)
	}
	*g.waiting = append(*g.waiting, p...)
	if !g.writing {
		g.writing = true
		go g.write()
	}
	return len(p), nil
}

// write writes what waits until nothing does, or until it cannot.
func (g *gathered) write() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.waiting != nil {
		b := g.waiting
		g.waiting = nil
		if g.failed == nil {
			g.changed.Broadcast()
			g.mu.Unlock()
			_, err := g.Conn.Write(*b)
			g.mu.Lock()
			g.failed = err
		}
		if cap(*b) == gatherBytes {
			*b = (*b)[:0]
			gatherBuffers.Put(b)
		}
	}
	g.writing = false
	g.changed.Broadcast()
}

// SetWriteDeadline implements net.Conn. A time that is past, which crypto/tls sets as soon as it has said good-bye, is for what
// comes later: what has been taken over is written first.
func (g *gathered) SetWriteDeadline(t time.Time) error {
	g.mu.Lock()
	patient := g.patient
	g.mu.Unlock()
	if patient {
		return nil
	}
	if !t.IsZero() && !t.After(time.Now()) {
		if err := g.drain(); err != nil {
			return err
		}
	}
	return g.Conn.SetWriteDeadline(t)
}

// CloseWrite is that of c, and does not wait until all that was written is with the system: Flush does. By itself crypto/tls waits 5
// seconds for that, and what is not written by then is lost. A deadline that is set before it returns may not hold.
func CloseWrite(c *tls.Conn) error {
	g, ok := c.NetConn().(*gathered)
	if !ok {
		return c.CloseWrite()
	}
	g.bePatient(true)
	defer g.bePatient(false)
	return c.CloseWrite()
}

// Flush returns when all that was written to c is with the system, however slowly the other side reads, unless there is a deadline.
func Flush(c *tls.Conn) error {
	g, ok := c.NetConn().(*gathered)
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

func (g *gathered) bePatient(patient bool) {
	g.mu.Lock()
	g.patient = patient
	g.mu.Unlock()
}

// drain returns when nothing waits any longer.
func (g *gathered) drain() error {
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
