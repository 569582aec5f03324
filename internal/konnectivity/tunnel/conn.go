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
	writePiece = maxRead   // of what is written
)

// Conn is the End that a program reads and writes: a net.Conn, with CloseWrite.
type Conn struct {
	peer   Endpoint
	remote net.Addr

	mu            sync.Mutex
	received      []*h2.Buffer
	readErr       error // of what arrives, after that
	unacked       int
	writeErr      error // of what is written
	closed        bool
	readDeadline  deadline
	writeDeadline deadline
	writeMu       sync.Mutex // pieces of one Write stay together
}

// NewConn returns the End for a program, joined to another that leads to an address.
func NewConn(other UnpairedEndpoint, address string) *Conn {
	c := &Conn{peer: other, remote: tunnelAddr(address)}
	c.readDeadline.L, c.writeDeadline.L = &c.mu, &c.mu
	other.Pair((*connEndpoint)(c))
	return c
}

// tunnelAddr is an address at the other end of a tunnel.
type tunnelAddr string

func (tunnelAddr) Network() string  { return "tcp" }
func (a tunnelAddr) String() string { return string(a) }

// connEndpoint is a Conn as the other End sees it.
type connEndpoint Conn

// Send implements End.
func (c *connEndpoint) Send(b *h2.Buffer) {
	c.mu.Lock()
	if c.readErr != nil {
		c.mu.Unlock()
		b.Release()
		return
	}
	if n := len(c.received); n == 0 || !c.received[n-1].TryAppend(b) {
		c.received = append(c.received, b)
	}
	c.readDeadline.Broadcast()
	c.mu.Unlock()
}

// Read implements net.Conn.
func (c *Conn) Read(p []byte) (n int, err error) {
	c.mu.Lock()
	for len(c.received) == 0 && c.readErr == nil && !c.readDeadline.expired && len(p) > 0 {
		c.readDeadline.Wait()
	}
	switch {
	case c.readDeadline.expired:
		c.mu.Unlock()
		return 0, os.ErrDeadlineExceeded
	case len(c.received) == 0:
		defer c.mu.Unlock()
		return 0, c.readErr
	}
	var done []*h2.Buffer
	for len(c.received) > 0 && n < len(p) {
		b := c.received[0]
		m := copy(p[n:], b.Bytes())
		n += m
		if b.Skip(m); b.Len() == 0 {
			done = append(done, b)
			c.received = c.received[1:]
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
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	for len(p) > 0 {
		m := min(len(p), writePiece)
		if err := c.waitForWindow(m); err != nil {
			return n, err
		}
		b := h2.BufferOf(p[:m])
		b.SetWindow(c, m)
		c.peer.Send(b)
		n, p = n+m, p[m:]
	}
	return n, nil
}

// waitForWindow waits until something may be written, and counts it.
func (c *Conn) waitForWindow(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.unacked >= connWindow && c.writeErr == nil && !c.writeDeadline.expired {
		c.writeDeadline.Wait()
	}
	switch {
	case c.writeErr != nil:
		return c.writeErr
	case c.writeDeadline.expired:
		return os.ErrDeadlineExceeded
	}
	c.unacked += n
	return nil
}

// Credit implements h2.Creditor.
func (c *Conn) Credit(n int) {
	c.mu.Lock()
	c.unacked -= n
	c.writeDeadline.Broadcast()
	c.mu.Unlock()
}

// CloseWrite implements End.
func (c *connEndpoint) CloseWrite() { (*Conn)(c).setErrors(io.EOF, nil) }

// Close implements End.
func (c *connEndpoint) Close(err error) {
	if err == nil {
		(*Conn)(c).setErrors(io.EOF, net.ErrClosed)
		return
	}
	err = fmt.Errorf("%w: %w", errLost, err)
	(*Conn)(c).setErrors(err, err)
}

// setErrors notes why nothing more arrives, and why nothing can be written.
func (c *Conn) setErrors(end, failed error) {
	c.mu.Lock()
	if c.readErr == nil {
		c.readErr = end
	}
	if c.writeErr == nil {
		c.writeErr = failed
	}
	c.readDeadline.Broadcast()
	c.writeDeadline.Broadcast()
	c.mu.Unlock()
}

// CloseWrite says that nothing more will be written. What the other side sends arrives as before, where it knows halves of connections.
func (c *Conn) CloseWrite() error {
	c.setErrors(nil, net.ErrClosed)
	c.peer.CloseWrite()
	return nil
}

// Close implements net.Conn. What was written is still sent.
func (c *Conn) Close() error {
	c.mu.Lock()
	again := c.closed
	c.closed, c.readErr, c.writeErr = true, net.ErrClosed, net.ErrClosed
	unread := c.received
	c.received = nil
	c.readDeadline.Broadcast()
	c.writeDeadline.Broadcast()
	c.readDeadline.set(time.Time{})
	c.writeDeadline.set(time.Time{})
	c.mu.Unlock()
	if again {
		return net.ErrClosed
	}
	for _, b := range unread {
		b.Release()
	}
	c.peer.Close(nil)
	return nil
}

// LocalAddr implements net.Conn. It is not known.
func (c *Conn) LocalAddr() net.Addr { return tunnelAddr("") }

// RemoteAddr implements net.Conn: as it was asked for.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadline(&c.readDeadline, t) }

// SetWriteDeadline implements net.Conn.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(&c.writeDeadline, t) }

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
	timer   *time.Timer
	expired bool
}

// set has it be over at a time, never if that is zero. The caller holds the lock.
func (d *deadline) set(t time.Time) {
	if d.timer != nil {
		d.timer.Stop()
	}
	d.timer, d.expired = nil, false
	if t.IsZero() {
		return
	}
	if left := time.Until(t); left > 0 {
		var mine *time.Timer
		mine = time.AfterFunc(left, func() {
			d.L.Lock()
			defer d.L.Unlock()
			if d.timer == mine { // it has not been set again
				d.expired = true
				d.Broadcast()
			}
		})
		d.timer = mine
		return
	}
	d.expired = true
	d.Broadcast()
}
