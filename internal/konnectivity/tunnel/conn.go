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
	connWindow = 256 << 10 // bytes written by the program that the peer has not sent yet
	writePiece = maxRead   // bytes of a Write that are sent in one Buffer
)

// Conn is the Endpoint that this program reads and writes: a net.Conn with CloseWrite.
type Conn struct {
	peer   Endpoint
	remote net.Addr

	mu            sync.Mutex
	received      []*h2.Buffer
	readErr       error // result of Read after the received data
	unacked       int   // written bytes without credit
	writeErr      error // result of Write
	closed        bool
	readDeadline  deadline
	writeDeadline deadline
	writeMu       sync.Mutex // keeps the pieces of one Write together
}

// NewConn returns a Conn and pairs it with peer, which leads to address.
func NewConn(peer UnpairedEndpoint, address string) *Conn {
	c := &Conn{peer: peer, remote: tunnelAddr(address)}
	c.readDeadline.L, c.writeDeadline.L = &c.mu, &c.mu
	peer.Pair((*connEndpoint)(c))
	return c
}

// tunnelAddr is the address of an end of a tunnelled connection.
type tunnelAddr string

func (tunnelAddr) Network() string  { return "tcp" }
func (a tunnelAddr) String() string { return string(a) }

// connEndpoint implements the Endpoint of a Conn, which the peer calls.
type connEndpoint Conn

// Send implements Endpoint.
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
		copied := copy(p[n:], b.Bytes())
		n += copied
		if b.Skip(copied); b.Len() == 0 {
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
		size := min(len(p), writePiece)
		if err := c.waitForWindow(size); err != nil {
			return n, err
		}
		b := h2.BufferOf(p[:size])
		b.SetWindow(c, size)
		c.peer.Send(b)
		n, p = n+size, p[size:]
	}
	return n, nil
}

// waitForWindow blocks until n bytes may be written, and counts them as written.
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

// Credit implements h2.Window.
func (c *Conn) Credit(n int) {
	c.mu.Lock()
	c.unacked -= n
	c.writeDeadline.Broadcast()
	c.mu.Unlock()
}

// CloseWrite implements Endpoint.
func (c *connEndpoint) CloseWrite() { (*Conn)(c).setErrors(io.EOF, nil) }

// Close implements Endpoint.
func (c *connEndpoint) Close(err error) {
	if err == nil {
		(*Conn)(c).setErrors(io.EOF, net.ErrClosed)
		return
	}
	err = fmt.Errorf("%w: %w", errLost, err)
	(*Conn)(c).setErrors(err, err)
}

// setErrors sets the errors that Read and Write return from now on. An error that is already set is kept.
func (c *Conn) setErrors(readErr, writeErr error) {
	c.mu.Lock()
	if c.readErr == nil {
		c.readErr = readErr
	}
	if c.writeErr == nil {
		c.writeErr = writeErr
	}
	c.readDeadline.Broadcast()
	c.writeDeadline.Broadcast()
	c.mu.Unlock()
}

// CloseWrite ends the sending direction. Receiving continues if the other side supports half-closed
// connections.
func (c *Conn) CloseWrite() error {
	c.setErrors(nil, net.ErrClosed)
	c.peer.CloseWrite()
	return nil
}

// Close implements net.Conn. Written data is still sent.
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

// LocalAddr implements net.Conn. It is empty because the local address is unknown.
func (c *Conn) LocalAddr() net.Addr { return tunnelAddr("") }

// RemoteAddr implements net.Conn. It returns the address as it was dialled.
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

// deadline is a deadline with a condition variable for the callers that wait until it expires.
type deadline struct {
	sync.Cond
	timer   *time.Timer
	expired bool
}

// set sets the deadline. A zero time means no deadline. The caller must hold the lock.
func (d *deadline) set(t time.Time) {
	if d.timer != nil {
		d.timer.Stop()
	}
	d.timer, d.expired = nil, false
	if t.IsZero() {
		return
	}
	if left := time.Until(t); left > 0 {
		var timer *time.Timer
		timer = time.AfterFunc(left, func() {
			d.L.Lock()
			defer d.L.Unlock()
			if d.timer == timer { // the deadline has not been set again
				d.expired = true
				d.Broadcast()
			}
		})
		d.timer = timer
		return
	}
	d.expired = true
	d.Broadcast()
}
