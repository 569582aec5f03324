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
	batchBytes         = MaxPiece - headroom // bytes that are written at a time, about: a full Buffer is one
	frameHeader        = 9
	closeNoticeTimeout = time.Second // for what one says that hangs up
)

// sliceWriter has a Framer write into memory.
type sliceWriter struct{ to *[]byte }

func (s sliceWriter) Write(p []byte) (int, error) {
	*s.to = append(*s.to, p...)
	return len(p), nil
}

// reply queues a frame that the other side has asked for, and gives up on one that asks for ever more. The caller holds mu.
func (c *Conn) reply(frame func() error) {
	if c.pendingReplies++; c.pendingReplies > maxReplies {
		c.closeFlooded()
		return
	}
	_ = frame()
	c.work.Signal()
}

// closeFlooded closes the connection, from wherever that is noticed.
func (c *Conn) closeFlooded() {
	if !c.flooded {
		c.flooded = true
		go c.Close(errFlood)
	}
}

// queueReset queues a reset of this side's own, unless the other side opens ever more streams that end so.
func (c *Conn) queueReset(id uint32, code http2.ErrCode) {
	if len(c.control) > maxControlBytes {
		c.closeFlooded()
		return
	}
	_ = c.controlFramer.WriteRSTStream(id, code)
	c.work.Signal()
}

// replyReset resets what the other side has done wrong.
func (c *Conn) replyReset(id uint32, code http2.ErrCode) {
	c.reply(func() error { return c.controlFramer.WriteRSTStream(id, code) })
}

// queueHeader queues a header, in the order in which it is compressed. The caller holds mu.
func (c *Conn) queueHeader(id uint32, fields []hpack.HeaderField, end bool) {
	if c.headerBlock.Reset(); len(c.control) > maxControlBytes {
		c.closeFlooded()
		return
	}
	for _, f := range fields {
		_ = c.encoder.WriteField(f) // into memory
	}
	rest := c.headerBlock.Bytes()
	piece := rest[:min(len(rest), c.peerSettings.maxFrame)]
	rest = rest[len(piece):]
	_ = c.controlFramer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: piece, EndStream: end, EndHeaders: len(rest) == 0})
	for len(rest) > 0 {
		piece = rest[:min(len(rest), c.peerSettings.maxFrame)]
		rest = rest[len(piece):]
		_ = c.controlFramer.WriteContinuation(id, len(rest) == 0, piece)
	}
	c.work.Signal()
}

// schedule queues a stream that has something to send, if it may.
func (c *Conn) schedule(s *Stream) {
	if s.inQueue || !s.sendable() {
		return
	}
	s.inQueue = true
	if s.queued <= shortQueueBytes {
		c.shortQueue.push(s)
	} else {
		c.longQueue.push(s)
	}
	c.work.Signal()
}

// sendable says that there is data and a window for it, or the end.
func (s *Stream) sendable() bool {
	return s.queued > 0 && s.sendWindow > 0 || s.queued == 0 && s.sendEnded && !s.endSent
}

// batchPool are the memory of batches: a connection has one only while it writes.
var batchPool = sync.Pool{New: func() any { return new([]byte) }}

// write writes what there is to write until the connection is closed.
func (c *Conn) write() {
	var done []*Buffer
	for {
		c.mu.Lock()
		for c.err == nil && len(c.control) == 0 && (c.sendWindow <= 0 || c.shortQueue.first == nil && c.longQueue.first == nil) {
			if c.retired && len(c.streams) == 0 {
				c.mu.Unlock()
				if secure, ok := c.netConn.(*tls.Conn); ok {
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
		out := batchPool.Get().(*[]byte)
		*out, done = c.fillBatch((*out)[:0], done[:0])
		c.mu.Unlock()
		_, err := c.netConn.Write(*out)
		if c.settingsSent.Load() == 0 {
			c.settingsSent.Store(now())
		}
		if cap(*out) <= 4*batchBytes {
			batchPool.Put(out)
		}
		if err != nil { // what the other side has said before it hung up tells more
			select {
			case <-c.done:
			case <-time.After(closeNoticeTimeout):
			}
			c.Close(err)
		}
		for _, b := range done {
			b.Release()
		}
	}
}

// fillBatch takes about a batch of what is to be written: first what is not DATA, then up to half of streams with little to send, then
// of the others, a Buffer each in turn. The caller releases the Buffers that are done.
func (c *Conn) fillBatch(out []byte, done []*Buffer) ([]byte, []*Buffer) {
	out, c.control, c.pendingReplies = append(out, c.control...), c.control[:0], 0
	if cap(c.control) > batchBytes {
		c.control = nil
	}
	full := len(out) + batchBytes
	for half := len(out) + batchBytes/2; c.shortQueue.first != nil && c.sendWindow > 0 && (len(out) < half || c.longQueue.first == nil && len(out) < full); {
		out, done = c.writeStream(c.shortQueue.pop(), out, done)
	}
	for c.longQueue.first != nil && c.sendWindow > 0 && len(out) < full {
		out, done = c.writeStream(c.longQueue.pop(), out, done)
	}
	return out, done
}

// writeStream has a stream send a full Buffer, or so many that are not. It queues again where there is more.
func (c *Conn) writeStream(s *Stream, out []byte, done []*Buffer) ([]byte, []*Buffer) {
	s.inQueue = false
	if c.streams[s.id] != s {
		return out, done
	}
	n := s.wholeBuffers(int(max(0, min(MaxPiece, int64(s.queued), s.sendWindow, c.sendWindow, int64(c.peerSettings.maxFrame)))))
	end := s.sendEnded && n == s.queued
	last := end && s.trailer == nil && s.resetCode == 0
	if n > 0 || last {
		out = appendDataHeader(out, n, s.id, last)
		out, done = s.dequeue(out, n, done)
		s.sendWindow -= int64(n)
		c.sendWindow -= int64(n)
	}
	if !end {
		c.schedule(s)
		return out, done
	}
	if s.resetCode != 0 {
		c.queueReset(s.id, s.resetCode)
		c.remove(s)
		return out, done
	}
	if s.trailer != nil {
		c.queueHeader(s.id, s.trailer, true)
		out, c.control = append(out, c.control...), c.control[:0]
	}
	s.endSent = true
	if c.removeIfEnded(s); s.closeAfterSend && !s.recvEnded {
		c.closeRead(s)
	}
	return out, done
}

// wholeBuffers is how many of the first n bytes of the queue are whole Buffers, so that what was a message stays in one piece; n if the first is
// larger.
func (s *Stream) wholeBuffers(n int) int {
	whole := 0
	for b := s.firstBuffer; b != nil && whole+b.Len() <= n; b = b.next {
		whole += b.Len()
	}
	if whole == 0 {
		return n
	}
	return whole
}

// appendDataHeader appends the header of a DATA frame (RFC 9113, 4.1 and 6.1).
func appendDataHeader(out []byte, n int, id uint32, end bool) []byte {
	var flags http2.Flags
	if end {
		flags = http2.FlagDataEndStream
	}
	out = append(out, byte(n>>16), byte(n>>8), byte(n), byte(http2.FrameData), byte(flags))
	return binary.BigEndian.AppendUint32(out, id)
}

// dequeue moves n bytes out of the queue, and the Buffers that are through to done.
func (s *Stream) dequeue(out []byte, n int, done []*Buffer) ([]byte, []*Buffer) {
	s.queued -= n
	for n > 0 {
		b := s.firstBuffer
		piece := b.Bytes()[:min(n, b.Len())]
		out = append(out, piece...)
		n -= len(piece)
		if b.Skip(len(piece)); b.Len() > 0 {
			break
		}
		if s.firstBuffer = b.next; s.firstBuffer == nil {
			s.lastBuffer = nil
		}
		b.next = nil
		done = append(done, b)
	}
	return out, done
}

// removeIfEnded removes a stream that has ended on both sides.
func (c *Conn) removeIfEnded(s *Stream) {
	if s.recvEnded && s.endSent {
		c.remove(s)
	}
}

func (c *Conn) remove(s *Stream) {
	if c.streams[s.id] != s {
		return
	}
	delete(c.streams, s.id)
	if s.expiryTimer != nil {
		s.expiryTimer.Stop()
	}
	if c.isPeerStream(s.id) {
		c.peerStreams--
	}
	c.closeIfIdle()
}

// isPeerStream says that the other side has opened a stream: clients have odd numbers (RFC 9113, 5.1.1).
func (c *Conn) isPeerStream(id uint32) bool { return (id%2 == 1) != c.client }
