package tunnel

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
)

const (
	connWindow = 256 << 10 // bytes that were written and are not through
	piece      = mostRead  // of what is written
)

// Conn is the End that a program reads and writes: a net.Conn, with CloseWrite.
type Conn struct {
	other  End
	remote net.Addr

	mu       sync.Mutex
	arrived  []*h2.Buffer
	end      error // of what arrives, after that
	unpaid   int
	failed   error // of what is written
	closed   bool
	readable deadline
	writable deadline
	writing  sync.Mutex // pieces of one Write stay together
}

// NewConn returns the End for a program, joined to another that leads to an address.
func NewConn(other Joint, address string) *Conn {
	c := &Conn{other: other, remote: tunnelled(address)}
	c.readable.L, c.writable.L = &c.mu, &c.mu
	other.Join((*connEnd)(c))
	return c
}

// tunnelled is an address at the other end of a tunnel.
type tunnelled string

func (tunnelled) Network() string  { return "tcp" }
func (a tunnelled) String() string { return string(a) }

// connEnd is a Conn as the other End sees it.
type connEnd Conn

// Send implements End.
func (c *connEnd) Send(b *h2.Buffer) {
	c.mu.Lock()
	if c.end != nil {
		c.mu.Unlock()
		b.Release()
		return
	}
	if n := len(c.arrived); n == 0 || !c.arrived[n-1].Absorb(b) {
		c.arrived = append(c.arrived, b)
	}
	c.readable.Broadcast()
	c.mu.Unlock()
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (n int, err error) {
	c.mu.Lock()
	for len(c.arrived) == 0 && c.end == nil && !c.readable.over && len(p) > 0 {
		c.readable.Wait()
	}
	switch {
	case c.readable.over:
		c.mu.Unlock()
		return 0, os.ErrDeadlineExceeded
	case len(c.arrived) == 0:
		defer c.mu.Unlock()
		return 0, c.end
	}
	var done []*h2.Buffer
	for len(c.arrived) > 0 && n < len(p) {
		b := c.arrived[0]
		m := copy(p[n:], b.Bytes())
		n += m
		if b.Skip(m); b.Len() == 0 {
			done = append(done, b)
			c.arrived = c.arrived[1:]
		}
	}
	c.mu.Unlock()
	for _, b := range done {
		b.Release()
	}
	return n, nil
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for len(p) > 0 {
		m := min(len(p), piece)
		if err := c.room(m); err != nil {
			return n, err
		}
		b := h2.BufferOf(p[:m])
		b.Owe(c, m)
		c.other.Send(b)
		n, p = n+m, p[m:]
	}
	return n, nil
}

// room waits until something may be written, and counts it.
func (c *Conn) room(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.unpaid >= connWindow && c.failed == nil && !c.writable.over {
		c.writable.Wait()
	}
	switch {
	case c.failed != nil:
		return c.failed
	case c.writable.over:
		return os.ErrDeadlineExceeded
	}
	c.unpaid += n
	return nil
}

// Credit implements h2.Creditor.
func (c *Conn) Credit(n int) {
	c.mu.Lock()
	c.unpaid -= n
	c.writable.Broadcast()
	c.mu.Unlock()
}

// CloseWrite implements End.
func (c *connEnd) CloseWrite() { (*Conn)(c).over(io.EOF, nil) }

// Close implements End.
func (c *connEnd) Close(err error) {
	if err == nil {
		(*Conn)(c).over(io.EOF, net.ErrClosed)
		return
	}
	err = fmt.Errorf("%w: %w", errLost, err)
	(*Conn)(c).over(err, err)
}

// over notes why nothing more arrives, and why nothing can be written.
func (c *Conn) over(end, failed error) {
	c.mu.Lock()
	if c.end == nil {
		c.end = end
	}
	if c.failed == nil {
		c.failed = failed
	}
	c.readable.Broadcast()
	c.writable.Broadcast()
	c.mu.Unlock()
}

// CloseWrite says that nothing more will be written. What the other side sends arrives as before, where it knows halves of connections.
func (c *Conn) CloseWrite() error {
	c.over(nil, net.ErrClosed)
	c.other.CloseWrite()
	return nil
}

// Close implements net.Conn. What was written is still sent.
func (c *Conn) Close() error {
	c.mu.Lock()
	again := c.closed
	c.closed, c.end, c.failed = true, net.ErrClosed, net.ErrClosed
	unread := c.arrived
	c.arrived = nil
	c.readable.Broadcast()
	c.writable.Broadcast()
	c.readable.set(time.Time{})
	c.writable.set(time.Time{})
	c.mu.Unlock()
	if again {
		return net.ErrClosed
	}
	for _, b := range unread {
		b.Release()
	}
	c.other.Close(nil)
	return nil
}

// LocalAddr implements net.Conn. It is not known.
func (c *Conn) LocalAddr() net.Addr { return tunnelled("") }

// RemoteAddr implements net.Conn: as it was asked for.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.readable, t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.writable, t) }

func (c *Conn) setDeadline(d *deadline, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	d.set(t)
	return nil
}

// deadline is when those that wait give up.
type deadline struct {
	sync.Cond
	timer *time.Timer
	over  bool
}

// set has it be over at a time, never if that is zero. The caller holds the lock.
func (d *deadline) set(t time.Time) {
	if d.timer != nil {
		d.timer.Stop()
	}
	d.timer, d.over = nil, false
	if t.IsZero() {
		return
	}
	if left := time.Until(t); left > 0 {
		var mine *time.Timer
		mine = time.AfterFunc(left, func() {
			d.L.Lock()
			defer d.L.Unlock()
			if d.timer == mine { // it has not been set again
				d.over = true
				d.Broadcast()
			}
		})
		d.timer = mine
		return
	}
	d.over = true
	d.Broadcast()
}
