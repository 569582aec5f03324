package tunnel

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trellis-k8s/trellis/internal/konnectivity/h2"
	"github.com/trellis-k8s/trellis/internal/tlsbatch"
)

const (
	socketWindow = 256 << 10 // bytes that were read of a socket and are not through
	leastRead    = 4 << 10
	mostRead     = h2.MaxPiece - 64 // with what is put before it, one frame
	mostWrite    = h2.MaxPiece      // of several Buffers, so that credit is given as the other side reads

	// halfTime is how long nothing may come from one to whom nothing more will be said. The other side may be gone: over TLS and a Unix
	// socket, that it has closed all is seen as the end of what it sends.
	halfTime = 5 * time.Minute
)

// Socket is the End of a connection that the system has: TCP, a Unix socket, or TLS over one of them.
type Socket struct {
	conn  net.Conn
	raw   syscall.RawConn // nil: TLS
	other End
	done  func()

	mu      sync.Mutex
	changed sync.Cond    // credit was given, or it is closed
	unpaid  int          // bytes that were read and are not through
	queue   []*h2.Buffer // to be written
	writing bool         // somebody writes; the queue is theirs
	ending  bool         // nothing is sent after the queue
	closing bool         // and then the connection is closed,
	why     error        // for which reason; nil: in order
	closed  bool
	failed  error // what is written, before all is read; or before it was joined
	heard   bool  // all that there is to read
	said    bool  // all that there is to write
}

// NewSocket returns the End of a connection, which it takes. It reads from when it is joined. When it is closed it calls done, once.
func NewSocket(conn net.Conn, done func()) *Socket {
	s := &Socket{conn: conn, done: done}
	s.changed.L = &s.mu
	if c, ok := conn.(syscall.Conn); ok {
		s.raw, _ = c.SyscallConn()
	}
	return s
}

// Join implements Joint.
func (s *Socket) Join(other End) {
	s.mu.Lock()
	s.other = other
	failed := s.failed
	s.mu.Unlock()
	if failed != nil { // before there was anybody to be told
		other.Close(failed)
		return
	}
	go s.read()
}

func (s *Socket) read() {
	r := &reading{Socket: s}
	r.try = r.attempt
	for size := leastRead; s.room(); {
		b, err := r.next(size)
		if err != nil {
			s.allRead(err)
			return
		}
		switch n := b.Len(); {
		case n == size:
			size = min(2*size, mostRead)
		case n < size/4:
			size = max(size/2, leastRead)
		}
		s.other.Send(b)
	}
}

// allRead ends what is read, in order at io.EOF. Where the other side has taken nothing more before, that is why.
func (s *Socket) allRead(err error) {
	s.mu.Lock()
	if s.failed != nil {
		err = s.failed
	}
	s.heard = err == io.EOF
	s.mu.Unlock()
	if err != io.EOF {
		s.fail(err)
		return
	}
	s.other.CloseWrite()
	s.half(&s.heard)
}

// room waits until something may be read; false: nothing more is wanted.
func (s *Socket) room() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.unpaid >= socketWindow && !s.closed && !s.closing {
		s.changed.Wait()
	}
	switch { // as long as it moves on
	case s.failed != nil:
		_ = s.conn.SetReadDeadline(time.Now().Add(linger))
	case s.said:
		_ = s.conn.SetReadDeadline(time.Now().Add(halfTime))
	}
	return !s.closed && !s.closing
}

// Credit implements h2.Creditor.
func (s *Socket) Credit(n int) {
	s.mu.Lock()
	s.unpaid -= n
	s.changed.Signal()
	s.mu.Unlock()
}

// reading is how a Socket is read. What one read needs is kept for the next, as there are very many.
type reading struct {
	*Socket
	try  func(fd uintptr) bool
	size int
	b    *h2.Buffer
	err  error
}

// next reads what there is, up to size bytes. While there is nothing it has no Buffer.
func (r *reading) next(size int) (*h2.Buffer, error) {
	r.size = size
	if r.raw == nil {
		r.b = h2.NewBuffer(size)
		n, err := r.conn.Read(r.b.Bytes())
		r.took(n, err)
	} else if err := r.raw.Read(r.try); err != nil {
		r.took(0, err)
	}
	b := r.b
	if r.b = nil; b != nil {
		r.mu.Lock()
		r.unpaid += b.Len()
		r.mu.Unlock()
	}
	return b, r.err
}

// attempt reads from the system; false: there is nothing yet.
func (r *reading) attempt(fd uintptr) bool {
	r.b = h2.NewBuffer(r.size)
	n, err := ignoreInterrupts(unix.Read, fd, r.b.Bytes())
	if n == 0 && err == nil {
		err = io.EOF
	}
	r.took(n, err)
	return err != unix.EAGAIN
}

// took keeps what has been read. With nothing there is an error, and no Buffer.
func (r *reading) took(n int, err error) {
	if n <= 0 {
		r.b.Release()
		r.b, r.err = nil, err
		return
	}
	r.err = nil
	r.b.Truncate(n)
	r.b.Owe(r.Socket, n)
}

// ignoreInterrupts repeats a system call that a signal has interrupted.
func ignoreInterrupts(call func(fd int, p []byte) (int, error), fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = call(int(fd), p); err != unix.EINTR {
			return n, err
		}
	}
}

// Send implements End. What the system takes at once it is given at once; for the rest there is a goroutine as long as there is a rest.
func (s *Socket) Send(b *h2.Buffer) {
	s.mu.Lock()
	if s.ending || s.closed {
		s.mu.Unlock()
		b.Release()
		return
	}
	if s.writing {
		if n := len(s.queue); n == 0 || !s.queue[n-1].Absorb(b) {
			s.queue = append(s.queue, b)
		}
		s.mu.Unlock()
		return
	}
	s.writing = true
	s.mu.Unlock()
	if s.writeNow(b); b.Len() > 0 {
		go s.write(b)
		return
	}
	b.Release()
	if batch := s.nextBatch(nil); len(batch) > 0 {
		go s.write(batch...)
	}
}

// writeNow writes what can be written without waiting. Errors are for who writes the rest.
func (s *Socket) writeNow(b *h2.Buffer) {
	if s.raw == nil {
		return
	}
	_ = s.raw.Write(func(fd uintptr) bool {
		if n, err := ignoreInterrupts(unix.Write, fd, b.Bytes()); err == nil {
			b.Skip(n)
		}
		return true
	})
}

// write writes Buffers, and then what is queued.
func (s *Socket) write(batch ...*h2.Buffer) {
	var pieces net.Buffers
	for len(batch) > 0 {
		pieces = pieces[:0]
		for _, b := range batch {
			pieces = append(pieces, b.Bytes())
		}
		all := pieces // WriteTo moves on in it
		_, err := all.WriteTo(s.conn)
		for _, b := range batch {
			b.Release()
		}
		if err != nil {
			s.notWritten(err)
			return
		}
		batch = s.nextBatch(batch[:0])
	}
}

// notWritten ends what is written, as the other side takes nothing more. What it has said before that is still read: it may be an answer
// that did not wait for all of a request.
func (s *Socket) notWritten(err error) {
	s.mu.Lock()
	reads := s.other != nil && !s.heard && !s.closing && !s.closed
	var queue []*h2.Buffer
	if reads {
		s.failed, s.ending, s.writing = err, true, false
		queue, s.queue = s.queue, nil
		_ = s.conn.SetReadDeadline(time.Now().Add(linger))
	}
	s.mu.Unlock()
	for _, b := range queue {
		b.Release()
	}
	if !reads {
		s.fail(err)
	}
}

// nextBatch takes of what is queued; if there is nothing, nobody writes any more.
func (s *Socket) nextBatch(spare []*h2.Buffer) []*h2.Buffer {
	s.mu.Lock()
	n, size := 0, 0
	for n < len(s.queue) && (n == 0 || size+s.queue[n].Len() <= mostWrite) {
		size += s.queue[n].Len()
		n++
	}
	batch := append(spare, s.queue[:n]...)
	s.queue = slices.Delete(s.queue, 0, n)
	if n > 0 {
		if s.closing { // as long as it moves on
			_ = s.conn.SetWriteDeadline(time.Now().Add(linger))
		}
		s.mu.Unlock()
		return batch
	}
	s.queue, s.writing = nil, s.ending
	ending := s.ending
	s.mu.Unlock()
	if ending {
		s.end()
	}
	return nil
}

// CloseWrite implements End.
func (s *Socket) CloseWrite() {
	s.mu.Lock()
	idle := !s.writing && !s.ending && !s.closed
	s.ending, s.writing = true, s.writing || idle
	s.mu.Unlock()
	if idle {
		s.end()
	}
}

// end tells the other side that nothing more comes, once all is written. Until then somebody writes.
func (s *Socket) end() {
	if c, secure := s.conn.(*tls.Conn); secure {
		go s.endSecure(c)
		return
	}
	closing, why := s.allWritten()
	if closing {
		s.shut(why)
		return
	}
	if c, ok := s.conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
	s.half(&s.said)
}

// endSecure tells it over TLS, behind what is still on its way to the system, unless there is an error to tell.
func (s *Socket) endSecure(c *tls.Conn) {
	s.mu.Lock()
	why := s.why
	s.mu.Unlock()
	var err error
	if why == nil {
		err = tlsbatch.CloseWrite(c)
	}
	s.mu.Lock()
	if s.closing { // Close may have set it too soon
		_ = c.SetWriteDeadline(time.Now().Add(linger))
	}
	s.mu.Unlock()
	if err == nil {
		err = tlsbatch.Flush(c)
	}
	closing, why := s.allWritten()
	switch {
	case err != nil:
		s.fail(err)
	case closing: // meanwhile
		s.shut(why)
	default:
		s.half(&s.said)
	}
}

// allWritten says whether the connection is to be closed, and why; nobody writes any more.
func (s *Socket) allWritten() (closing bool, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = false
	return s.closing, s.why
}

// half notes that one direction is over. With both, the connection is.
func (s *Socket) half(over *bool) {
	s.mu.Lock()
	*over = true
	both := s.heard && s.said && !s.closed
	s.closed = s.closed || both
	if s.said && !s.heard { // whoever reads may be waiting
		_ = s.conn.SetReadDeadline(time.Now().Add(halfTime))
	}
	s.mu.Unlock()
	if both {
		_ = s.conn.Close()
		s.done()
	}
}

// fail ends the connection at both Ends, unless it has been closed.
func (s *Socket) fail(err error) {
	s.mu.Lock()
	expected, other := s.closed || s.closing, s.other
	if !expected && s.failed == nil {
		s.failed = err
	}
	s.mu.Unlock()
	if !expected && other != nil {
		other.Close(err)
	}
	s.shut(err)
}

// Close implements End. After an error the other side sees a reset, not an end.
func (s *Socket) Close(err error) {
	s.mu.Lock()
	_, secure := s.conn.(*tls.Conn)
	idle := !s.writing && (!secure || s.said || s.ending)
	if s.closed || idle || atOnce(err) {
		s.mu.Unlock()
		s.shut(err)
		return
	}
	if !s.closing {
		s.ending, s.closing, s.why = true, true, err
	}
	begin := !s.writing
	s.writing = true
	s.changed.Broadcast()
	s.mu.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(linger))
	if begin {
		s.end()
	}
}

// shut closes the connection. What is queued is lost.
func (s *Socket) shut(err error) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	queue := s.queue
	s.queue = nil
	s.changed.Broadcast()
	s.mu.Unlock()
	if err != nil && !errors.Is(err, errGivenUp) {
		reset(s.conn)
	}
	_ = s.conn.Close()
	for _, b := range queue {
		b.Release()
	}
	s.done()
}

// reset breaks a connection of TCP off, below TLS, which would say that it ends in order. A Unix socket knows nothing of the kind.
func reset(conn net.Conn) {
	for {
		below, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = below.NetConn()
	}
	if c, ok := conn.(interface{ SetLinger(int) error }); ok {
		_ = c.SetLinger(0)
	}
	_ = conn.Close()
}
