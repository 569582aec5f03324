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
	socketWindow = 256 << 10 // bytes read from a socket that the peer has not sent yet
	minRead      = 4 << 10
	maxRead      = h2.MaxPiece - 64 // fits in one frame with its prefixes
	maxWrite     = h2.MaxPiece      // bytes of one write; a small limit lets credit follow the reader

	// halfCloseTimeout is the maximum silence of the remote side after this side has closed its direction. The
	// remote side may be gone: with TLS and Unix sockets, a closed connection looks like a half-closed one.
	halfCloseTimeout = 5 * time.Minute
)

// Socket is the Endpoint of a system connection: TCP, a Unix socket, or TLS over one of them.
type Socket struct {
	conn net.Conn
	raw  syscall.RawConn // nil for TLS
	peer Endpoint
	done func()

	mu              sync.Mutex
	changed         sync.Cond    // signals credit and the end of the connection
	unacked         int          // read bytes without credit
	queue           []*h2.Buffer // data to write
	writing         bool         // a write is in progress, and its goroutine also writes queue
	endAfterQueue   bool         // the sending direction ends after queue
	closeAfterQueue bool         // the connection is closed after queue
	closeErr        error        // the reason for closeAfterQueue; nil means a normal end
	closed          bool
	writeErr        error // a failed write, while reading continues; or a failure before the Socket had a peer
	readEnded       bool  // the end of the received data has been read
	writeEnded      bool  // the end of the sent data has been written
}

// NewSocket returns a Socket that owns the connection. It starts to read when it is paired. done is called once,
// when the Socket is closed.
func NewSocket(conn net.Conn, done func()) *Socket {
	s := &Socket{conn: conn, done: done}
	s.changed.L = &s.mu
	if c, ok := conn.(syscall.Conn); ok {
		s.raw, _ = c.SyscallConn()
	}
	return s
}

// Pair implements UnpairedEndpoint.
func (s *Socket) Pair(peer Endpoint) {
	s.mu.Lock()
	s.peer = peer
	err := s.writeErr
	s.mu.Unlock()
	if err != nil { // the connection has failed before it had a peer
		peer.Close(err)
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

// finishRead ends reading because of an error. io.EOF is a normal end. If an earlier write has failed, finishRead
// uses the error of the write instead.
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

// waitForWindow blocks until data may be read. It reports false if no more data should be read.
func (s *Socket) waitForWindow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.unacked >= socketWindow && !s.closed && !s.closeAfterQueue {
		s.changed.Wait()
	}
	switch { // each successful read extends the deadline
	case s.writeErr != nil:
		_ = s.conn.SetReadDeadline(time.Now().Add(lingerTimeout))
	case s.writeEnded:
		_ = s.conn.SetReadDeadline(time.Now().Add(halfCloseTimeout))
	}
	return !s.closed && !s.closeAfterQueue
}

// Credit implements h2.Window.
func (s *Socket) Credit(n int) {
	s.mu.Lock()
	s.unacked -= n
	s.changed.Signal()
	s.mu.Unlock()
}

// socketReader reads from a Socket. Its fields avoid an allocation for each read.
type socketReader struct {
	*Socket
	tryReadFunc func(fd uintptr) bool
	size        int
	buffer      *h2.Buffer
	err         error
}

// next reads the available data, at most size bytes. It allocates the Buffer only when there is data, except
// for TLS.
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

// tryRead reads from the system. It reports false if there is no data yet.
func (r *socketReader) tryRead(fd uintptr) bool {
	r.buffer = h2.NewBuffer(r.size)
	n, err := retryEINTR(unix.Read, fd, r.buffer.Bytes())
	if n == 0 && err == nil {
		err = io.EOF
	}
	r.setResult(n, err)
	return err != unix.EAGAIN
}

// setResult stores the result of a read: n bytes in the Buffer or, if n is 0, an error and no Buffer.
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

// retryEINTR repeats a system call until no signal interrupts it.
func retryEINTR(call func(fd int, p []byte) (int, error), fd uintptr, p []byte) (n int, err error) {
	for {
		if n, err = call(int(fd), p); err != unix.EINTR {
			return n, err
		}
	}
}

// Send implements Endpoint. It writes immediately as much as the system accepts. A goroutine writes the rest
// and ends when the queue is empty.
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

// writeNow writes what can be written without blocking. It ignores errors: the write of the rest returns them.
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

// write writes a batch of Buffers, and then the queue.
func (s *Socket) write(batch ...*h2.Buffer) {
	var data net.Buffers
	for len(batch) > 0 {
		data = data[:0]
		for _, b := range batch {
			data = append(data, b.Bytes())
		}
		all := data // WriteTo consumes all
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

// writeFailed ends the sending direction after a failed write. Reading continues, because the remote side may have
// sent a response before it received the whole request.
func (s *Socket) writeFailed(err error) {
	s.mu.Lock()
	reading := s.peer != nil && !s.readEnded && !s.closeAfterQueue && !s.closed
	var queue []*h2.Buffer
	if reading {
		s.writeErr, s.endAfterQueue, s.writing = err, true, false
		queue, s.queue = s.queue, nil
		_ = s.conn.SetReadDeadline(time.Now().Add(lingerTimeout))
	}
	s.mu.Unlock()
	for _, b := range queue {
		b.Release()
	}
	if !reading {
		s.fail(err)
	}
}

// nextBatch removes the next Buffers from the queue, at most maxWrite bytes but at least one Buffer. If the
// queue is empty, it marks writing as ended.
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
		if s.closeAfterQueue { // each successful write extends the deadline
			_ = s.conn.SetWriteDeadline(time.Now().Add(lingerTimeout))
		}
		s.mu.Unlock()
		return batch
	}
	s.queue, s.writing = nil, s.endAfterQueue
	end := s.endAfterQueue
	s.mu.Unlock()
	if end {
		s.endWrite()
	}
	return nil
}

// CloseWrite implements Endpoint.
func (s *Socket) CloseWrite() {
	s.mu.Lock()
	idle := !s.writing && !s.endAfterQueue && !s.closed
	s.endAfterQueue, s.writing = true, s.writing || idle
	s.mu.Unlock()
	if idle {
		s.endWrite()
	}
}

// endWrite sends the end of the data after everything is written. The writing flag stays set until then.
func (s *Socket) endWrite() {
	if c, secure := s.conn.(*tls.Conn); secure {
		go s.endWriteTLS(c)
		return
	}
	closed, reason := s.stopWriting()
	if closed {
		s.closeNow(reason)
		return
	}
	if c, ok := s.conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
	s.endDirection(&s.writeEnded)
}

// endWriteTLS sends a TLS close notice after the pending data, unless the connection ends with an error.
func (s *Socket) endWriteTLS(c *tls.Conn) {
	s.mu.Lock()
	reason := s.closeErr
	s.mu.Unlock()
	var err error
	if reason == nil {
		err = tlsbatch.CloseWrite(c)
	}
	s.mu.Lock()
	if s.closeAfterQueue { // renew the deadline that Close has set before the close notice
		_ = c.SetWriteDeadline(time.Now().Add(lingerTimeout))
	}
	s.mu.Unlock()
	if err == nil {
		err = tlsbatch.Flush(c)
	}
	closed, reason := s.stopWriting()
	switch {
	case err != nil:
		s.fail(err)
	case closed: // Close was called in the meantime
		s.closeNow(reason)
	default:
		s.endDirection(&s.writeEnded)
	}
}

// stopWriting clears the writing flag. It reports whether the connection must be closed, and the reason.
func (s *Socket) stopWriting() (closed bool, reason error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = false
	return s.closeAfterQueue, s.closeErr
}

// endDirection marks one direction as ended. When both have ended, it closes the connection.
func (s *Socket) endDirection(ended *bool) {
	s.mu.Lock()
	*ended = true
	both := s.readEnded && s.writeEnded && !s.closed
	s.closed = s.closed || both
	if s.writeEnded && !s.readEnded { // a read may be waiting without a deadline
		_ = s.conn.SetReadDeadline(time.Now().Add(halfCloseTimeout))
	}
	s.mu.Unlock()
	if both {
		_ = s.conn.Close()
		s.done()
	}
}

// fail closes the connection at both Endpoints with an error, unless it is already closed or closing.
func (s *Socket) fail(err error) {
	s.mu.Lock()
	expected, peer := s.closed || s.closeAfterQueue, s.peer
	if !expected && s.writeErr == nil {
		s.writeErr = err
	}
	s.mu.Unlock()
	if !expected && peer != nil {
		peer.Close(err)
	}
	s.closeNow(err)
}

// Close implements Endpoint. With an error, the remote side sees a reset instead of a normal end.
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
	start := !s.writing
	s.writing = true
	s.changed.Broadcast()
	s.mu.Unlock()
	_ = s.conn.SetWriteDeadline(time.Now().Add(lingerTimeout))
	if start {
		s.endWrite()
	}
}

// closeNow closes the connection and discards the queue.
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

// resetConn resets a TCP connection. It bypasses TLS, which would send a close notice. Unix sockets have no
// reset.
func resetConn(conn net.Conn) {
	for {
		wrapper, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = wrapper.NetConn()
	}
	if c, ok := conn.(interface{ SetLinger(int) error }); ok {
		_ = c.SetLinger(0)
	}
	_ = conn.Close()
}
