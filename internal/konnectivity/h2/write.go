package h2

import (
	"crypto/tls"
	"encoding/binary"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/trellis-k8s/trellis/internal/tlsbatch"
)

const (
	batch       = MaxPiece - headroom // bytes that are written at a time, about: a full Buffer is one
	frameHeader = 9
	reasonWait  = time.Second // for what one says that hangs up
)

// sink has a Framer write into memory.
type sink struct{ to *[]byte }

func (s sink) Write(p []byte) (int, error) {
	*s.to = append(*s.to, p...)
	return len(p), nil
}

// answer queues a frame that the other side has asked for, and gives up on one that asks for ever more. The caller holds mu.
func (c *Conn) answer(frame func() error) {
	if c.answers++; c.answers > maxAnswers {
		c.flooded()
		return
	}
	_ = frame()
	c.work.Signal()
}

// flooded closes the connection, from wherever that is noticed.
func (c *Conn) flooded() {
	if !c.drowned {
		c.drowned = true
		go c.Close(errFlood)
	}
}

// writeReset queues a reset of this side's own, unless the other side opens ever more streams that end so.
func (c *Conn) writeReset(id uint32, code http2.ErrCode) {
	if len(c.control) > maxControl {
		c.flooded()
		return
	}
	_ = c.out.WriteRSTStream(id, code)
	c.work.Signal()
}

// reset resets what the other side has done wrong.
func (c *Conn) reset(id uint32, code http2.ErrCode) {
	c.answer(func() error { return c.out.WriteRSTStream(id, code) })
}

// header queues a header, in the order in which it is compressed. The caller holds mu.
func (c *Conn) header(id uint32, fields []hpack.HeaderField, end bool) {
	if c.block.Reset(); len(c.control) > maxControl {
		c.flooded()
		return
	}
	for _, f := range fields {
		_ = c.encoder.WriteField(f) // into memory
	}
	rest := c.block.Bytes()
	piece := rest[:min(len(rest), c.peer.frame)]
	rest = rest[len(piece):]
	_ = c.out.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: piece, EndStream: end, EndHeaders: len(rest) == 0})
	for len(rest) > 0 {
		piece = rest[:min(len(rest), c.peer.frame)]
		rest = rest[len(piece):]
		_ = c.out.WriteContinuation(id, len(rest) == 0, piece)
	}
	c.work.Signal()
}

// ready queues a stream that has something to send, if it may.
func (c *Conn) ready(s *Stream) {
	if s.waits || !s.sendable() {
		return
	}
	s.waits = true
	if s.queued <= isFew {
		c.few.push(s)
	} else {
		c.many.push(s)
	}
	c.work.Signal()
}

// sendable says that there is data and a window for it, or the end.
func (s *Stream) sendable() bool {
	return s.queued > 0 && s.window > 0 || s.queued == 0 && s.ended && !s.endSent
}

// outs are the memory of batches: a connection has one only while it writes.
var outs = sync.Pool{New: func() any { return new([]byte) }}

// write writes what there is to write until the connection is closed.
func (c *Conn) write() {
	var done []*Buffer
	for {
		c.mu.Lock()
		for c.err == nil && len(c.control) == 0 && (c.window <= 0 || c.few.first == nil && c.many.first == nil) {
			if c.retired && len(c.streams) == 0 {
				c.mu.Unlock()
				if secure, ok := c.wire.(*tls.Conn); ok {
					_ = tlsbatch.Flush(secure) // an error is that of the connection
				}
				c.Close(nil)
				return
			}
			c.work.Wait()
		}
		if c.err != nil {
			c.mu.Unlock()
			return
		}
		out := outs.Get().(*[]byte)
		*out, done = c.gather((*out)[:0], done[:0])
		c.mu.Unlock()
		_, err := c.wire.Write(*out)
		if c.asked.Load() == 0 {
			c.asked.Store(now())
		}
		if cap(*out) <= 4*batch {
			outs.Put(out)
		}
		if err != nil { // what the other side has said before it hung up tells more
			select {
			case <-c.done:
			case <-time.After(reasonWait):
			}
			c.Close(err)
		}
		for _, b := range done {
			b.Release()
		}
	}
}

// gather takes about a batch of what is to be written: first what is not DATA, then up to half of streams with little to send, then
// of the others, a Buffer each in turn. The caller releases the Buffers that are done.
func (c *Conn) gather(out []byte, done []*Buffer) ([]byte, []*Buffer) {
	out, c.control, c.answers = append(out, c.control...), c.control[:0], 0
	if cap(c.control) > batch {
		c.control = nil
	}
	full := len(out) + batch
	for half := len(out) + batch/2; c.few.first != nil && c.window > 0 && (len(out) < half || c.many.first == nil && len(out) < full); {
		out, done = c.turn(c.few.pop(), out, done)
	}
	for c.many.first != nil && c.window > 0 && len(out) < full {
		out, done = c.turn(c.many.pop(), out, done)
	}
	return out, done
}

// turn has a stream send a full Buffer, or so many that are not. It queues again where there is more.
func (c *Conn) turn(s *Stream, out []byte, done []*Buffer) ([]byte, []*Buffer) {
	s.waits = false
	if c.streams[s.id] != s {
		return out, done
	}
	n := s.whole(int(max(0, min(MaxPiece, int64(s.queued), s.window, c.window, int64(c.peer.frame)))))
	end := s.ended && n == s.queued
	last := end && s.trailer == nil && s.code == 0
	if n > 0 || last {
		out = appendFrame(out, n, s.id, last)
		out, done = s.take(out, n, done)
		s.window -= int64(n)
		c.window -= int64(n)
	}
	if !end {
		c.ready(s)
		return out, done
	}
	if s.code != 0 {
		c.writeReset(s.id, s.code)
		c.remove(s)
		return out, done
	}
	if s.trailer != nil {
		c.header(s.id, s.trailer, true)
		out, c.control = append(out, c.control...), c.control[:0]
	}
	s.endSent = true
	if c.forget(s); s.closing && !s.over {
		c.hangUp(s)
	}
	return out, done
}

// whole is how many of the first n bytes of the queue are whole Buffers, so that what was a message stays in one piece; n if the first is
// larger.
func (s *Stream) whole(n int) int {
	whole := 0
	for b := s.first; b != nil && whole+b.Len() <= n; b = b.next {
		whole += b.Len()
	}
	if whole == 0 {
		return n
	}
	return whole
}

// appendFrame appends the header of a DATA frame (RFC 9113, 4.1 and 6.1).
func appendFrame(out []byte, n int, id uint32, end bool) []byte {
	var flags http2.Flags
	if end {
		flags = http2.FlagDataEndStream
	}
	out = append(out, byte(n>>16), byte(n>>8), byte(n), byte(http2.FrameData), byte(flags))
	return binary.BigEndian.AppendUint32(out, id)
}

// take moves n bytes out of the queue, and the Buffers that are through to done.
func (s *Stream) take(out []byte, n int, done []*Buffer) ([]byte, []*Buffer) {
	s.queued -= n
	for n > 0 {
		b := s.first
		piece := b.Bytes()[:min(n, b.Len())]
		out = append(out, piece...)
		n -= len(piece)
		if b.Skip(len(piece)); b.Len() > 0 {
			break
		}
		if s.first = b.next; s.first == nil {
			s.final = nil
		}
		b.next = nil
		done = append(done, b)
	}
	return out, done
}

// forget removes a stream that has ended on both sides.
func (c *Conn) forget(s *Stream) {
	if s.over && s.endSent {
		c.remove(s)
	}
}

func (c *Conn) remove(s *Stream) {
	if c.streams[s.id] != s {
		return
	}
	delete(c.streams, s.id)
	if s.expiry != nil {
		s.expiry.Stop()
	}
	if c.isTheirs(s.id) {
		c.theirs--
	}
	c.closeEmpty()
}

// isTheirs says that the other side has opened a stream: clients have odd numbers (RFC 9113, 5.1.1).
func (c *Conn) isTheirs(id uint32) bool { return (id%2 == 1) != c.client }
