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
	minRead      = 4 << 10
	maxRead      = h2.MaxPiece - 64 // with what is put before it, one frame
	maxWrite     = h2.MaxPiece      // of several Buffers, so that credit is given as the other side reads

	// halfCloseTimeout is how long nothing may come from one to whom nothing more will be said. The other side may be gone: over TLS and a Unix
	// socket, that it has closed all is seen as the end of what it sends.
	halfCloseTimeout = 5 * time.Minute
)

// Socket is the End of a connection that the system has: TCP, a Unix socket, or TLS over one of them.
type Socket struct {
	conn net.Conn
	raw  syscall.RawConn // nil: TLS
	peer Endpoint
	done func()

	mu              sync.Mutex
	changed         sync.Cond    // credit was given, or it is closed
	unacked         int          // bytes that were read and are not through
	queue           []*h2.Buffer // to be written
	writing         bool         // somebody writes; the queue is theirs
	endAfterQueue   bool         // nothing is sent after the queue
	closeAfterQueue bool         // and then the connection is closed,
	closeErr        error        // for which reason; nil: in order
	closed          bool
	writeErr        error // what is written, before all is read; or before it was joined
	readEnded       bool  // all that there is to read
	writeEnded      bool  // all that there is to write
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

// Pair implements Joint.
func (s *Socket) Pair(other Endpoint) {
	s.mu.Lock()
	s.peer = other
	failed := s.writeErr
	s.mu.Unlock()
	if failed != nil { // before there was anybody to be told
		other.Close(failed)
		return
	}
	go s.read()
}

func (s *Socket) read() {
	r := &socketReader{Socket: s}
	r.tryReadFunc = r.tryRead
	for size := minRead; s.waitForWindow(); {
		b, err := r.next(size)
		if err != nil {
			s.finishRead(err)
			return
		}
		switch n := b.Len(); {
		case n == size:
			size = min(2*size, maxRead)
		case n < size/4:
			size = max(size/2, minRead)
		}
		s.peer.Send(b)
	}
}

// finishRead ends what is read, in order at io.EOF. Where the other side has taken nothing more before, that is why.
func (s *Socket) finishRead(err error) {
	s.mu.Lock()
	if s.writeErr != nil {
		err = s.writeErr
	}
	s.readEnded = err == io.EOF
	s.mu.Unlock()
	if err != io.EOF {
		s.fail(err)
		return
	}
	s.peer.CloseWrite()
	s.endDirection(&s.readEnded)
}

// waitForWindow waits until something may be read; false: nothing more is wanted.
func (s *Socket) waitForWindow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.unacked >= socketWindow && !s.closed && !s.closeAfterQueue {
		s.changed.Wait()
	}
	switch { // as long as it moves on
	case s.writeErr != nil:
		_ = s.conn.SetReadDeadline(time.Now().Add(lingerTimeout))
	case s.writeEnded:
		_ = s.conn.SetReadDeadline(time.Now().Add(halfCloseTimeout))
	}
	return !s.closed && !s.closeAfterQueue
}

// Credit implements h2.Creditor.
func (s *Socket) Credit(n int) {
	s.mu.Lock()
	s.unacked -= n
	s.changed.Signal()
	s.mu.Unlock()
}

// socketReader is how a Socket is read. What one read needs is kept for the next, as there are very many.
type socketReader struct {
	*Socket
	tryReadFunc func(fd uintptr) bool
	size        int
	buffer      *h2.Buffer
	err         error
}

// next reads what there is, up to size bytes. While there is nothing it has no Buffer.
func (r *socketReader) next(size int) (*h2.Buffer, error) {
	r.size = size
	if r.raw == nil {
		r.buffer = h2.NewBuffer(size)
		n, err := r.conn.Read(r.buffer.Bytes())
		r.setResult(n, err)
	} else if err := r.raw.Read(r.tryReadFunc); err != nil {
		r.setResult(0, err)
	}
	b := r.buffer
	if r.buffer = nil; b != nil {
		r.mu.Lock()
		r.unacked += b.Len()
		r.mu.Unlock()
	}
	return b, r.err
}

// tryRead reads from the system; false: there is nothing yet.
func (r *socketReader) tryRead(fd uintptr) bool {
	r.buffer = h2.NewBuffer(r.size)
	n, err := retryEINTR(unix.Read, fd, r.buffer.Bytes())
	if n == 0 && err == nil {
		err = io.EOF
	}
	r.setResult(n, err)
	return err != unix.EAGAIN
}

// setResult keeps what has been read. With nothing there is an error, and no Buffer.
func (r *socketReader) setResult(n int, err error) {
	if n <= 0 {
		r.buffer.Release()
		r.buffer, r.err = nil, err
		return
	}
	r.err = nil
	r.buffer.Truncate(n)
	r.buffer.SetWindow(r.Socket, n)
}

// retryEINTR repeats a system call that a signal has interrupted.
func retryEINTR(call func(fd int, p []byte) (int, error), fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = call(int(fd), p); err != unix.EINTR {
			return n, err
		}
	}
}

// Send implements End. What the system takes at once it is given at once; for the rest there is a goroutine as long as there is a rest.
func (s *Socket) Send(b *h2.Buffer) {
	s.mu.Lock()
	if s.endAfterQueue || s.closed {
		s.mu.Unlock()
		b.Release()
		return
	}
	if s.writing {
		if n := len(s.queue); n == 0 || !s.queue[n-1].TryAppend(b) {
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
		if n, err := retryEINTR(unix.Write, fd, b.Bytes()); err == nil {
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
			s.writeFailed(err)
			return
		}
		batch = s.nextBatch(batch[:0])
	}
}

// writeFailed ends what is written, as the other side takes nothing more. What it has said before that is still read: it may be an answer
// that did not wait for all of a request.
func (s *Socket) writeFailed(err error) {
	s.mu.Lock()
	reads := s.peer != nil && !s.readEnded && !s.closeAfterQueue && !s.closed
	var queue []*h2.Buffer
	if reads {
		s.writeErr, s.endAfterQueue, s.writing = err, true, false
		queue, s.queue = s.queue, nil
		_ = s.conn.SetReadDeadline(time.Now().Add(lingerTimeout))
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
	for n < len(s.queue) && (n == 0 || size+s.queue[n].Len() <= maxWrite) {
		size += s.queue[n].Len()
		n++
	}
	batch := append(spare, s.queue[:n]...)
	s.queue = slices.Delete(s.queue, 0, n)
	if n > 0 {
		if s.closeAfterQueue { // as long as it moves on
			_ = s.conn.SetWriteDeadline(time.Now().Add(lingerTimeout))
		}
		s.mu.Unlock()
		return batch
	}
	s.queue, s.writing = nil, s.endAfterQueue
	ending := s.endAfterQueue
	s.mu.Unlock()
	if ending {
		s.endWrite()
	}
	return nil
}

// CloseWrite implements End.
func (s *Socket) CloseWrite() {
	s.mu.Lock()
	idle := !s.writing && !s.endAfterQueue && !s.closed
	s.endAfterQueue, s.writing = true, s.writing || idle
	s.mu.Unlock()
	if idle {
		s.endWrite()
	}
}

// endWrite tells the other side that nothing more comes, once all is written. Until then somebody writes.
func (s *Socket) endWrite() {
	if c, secure := s.conn.(*tls.Conn); secure {
		go s.endWriteTLS(c)
		return
	}
	closing, why := s.stopWriting()
	if closing {
		s.closeNow(why)
		return
	}
	if c, ok := s.conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
	s.endDirection(&s.writeEnded)
}

// endWriteTLS tells it over TLS, behind what is still on its way to the system, unless there is an error to tell.
func (s *Socket) endWriteTLS(c *tls.Conn) {
	s.mu.Lock()
	why := s.closeErr
	s.mu.Unlock()
	var err error
	if why == nil {
		err = tlsbatch.CloseWrite(c)
	}
	s.mu.Lock()
	if s.closeAfterQueue { // Close may have set it too soon
		_ = c.SetWriteDeadline(time.Now().Add(lingerTimeout))
	}
	s.mu.Unlock()
	if err == nil {
		err = tlsbatch.Flush(c)
	}
	closing, why := s.stopWriting()
	switch {
	case err != nil:
		s.fail(err)
	case closing: // meanwhile
		s.closeNow(why)
	default:
		s.endDirection(&s.writeEnded)
	}
}

// stopWriting says whether the connection is to be closed, and why; nobody writes any more.
func (s *Socket) stopWriting() (closing bool, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = false
	return s.closeAfterQueue, s.closeErr
}

// endDirection notes that one direction is over. With both, the connection is.
func (s *Socket) endDirection(over *bool) {
	s.mu.Lock()
	*over = true
	both := s.readEnded && s.writeEnded && !s.closed
	s.closed = s.closed || both
	if s.writeEnded && !s.readEnded { // whoever reads may be waiting
		_ = s.conn.SetReadDeadline(time.Now().Add(halfCloseTimeout))
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
	expected, other := s.closed || s.closeAfterQueue, s.peer
	if !expected && s.writeErr == nil {
		s.writeErr = err
	}
	s.mu.Unlock()
	if !expected && other != nil {
		other.Close(err)
	}
	s.closeNow(err)
}

// Close implements End. After an error the other side sees a reset, not an end.
func (s *Socket) Close(err error) {
	s.mu.Lock()
	_, secure := s.conn.(*tls.Conn)
	idle := !s.writing && (!secure || s.writeEnded || s.endAfterQueue)
	if s.closed || idle || abortsNow(err) {
		s.mu.Unlock()
		s.closeNow(err)
		return
	}
	if !s.closeAfterQueue {
		s.endAfterQueue, s.closeAfterQueue, s.closeErr = true, true, err
	}
	begin := !s.writing
	s.writing = true
	s.changed.Broadcast()
	s.mu.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(lingerTimeout))
	if begin {
		s.endWrite()
	}
}

// closeNow closes the connection. What is queued is lost.
func (s *Socket) closeNow(err error) {
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
	if err != nil && !errors.Is(err, errCancelled) {
		resetConn(s.conn)
	}
	_ = s.conn.Close()
	for _, b := range queue {
		b.Release()
	}
	s.done()
}

// resetConn breaks a connection of TCP off, below TLS, which would say that it ends in order. A Unix socket knows nothing of the kind.
func resetConn(conn net.Conn) {
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
