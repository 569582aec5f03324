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
	batchBytes         = MaxPiece - headroom // approximate size of a write; a full Buffer fits
	frameHeader        = 9
	closeNoticeTimeout = time.Second // time to receive the peer's reason after a write has failed
)

// sliceWriter lets a Framer write to a slice.
type sliceWriter struct{ to *[]byte }

func (s sliceWriter) Write(p []byte) (int, error) {
	*s.to = append(*s.to, p...)
	return len(p), nil
}

// reply queues a frame that replies to a frame of the peer. It closes the connection if too many replies are
// queued. The caller must hold mu.
func (c *Conn) reply(frame func() error) {
	if c.pendingReplies++; c.pendingReplies > maxReplies {
		c.closeFlooded()
		return
	}
	_ = frame()
	c.work.Signal()
}

// closeFlooded closes the connection in the background, because the caller holds mu.
func (c *Conn) closeFlooded() {
	if !c.flooded {
		c.flooded = true
		go c.Close(errFlood)
	}
}

// queueReset queues a reset that this side initiates. It closes the connection if too many frames are queued,
// as when the peer keeps opening streams that are reset. The caller must hold mu.
func (c *Conn) queueReset(id uint32, code http2.ErrCode) {
	if len(c.control) > maxControlBytes {
		c.closeFlooded()
		return
	}
	_ = c.controlFramer.WriteRSTStream(id, code)
	c.work.Signal()
}

// replyReset queues a reset because of an error of the peer. The caller must hold mu.
func (c *Conn) replyReset(id uint32, code http2.ErrCode) {
	c.reply(func() error { return c.controlFramer.WriteRSTStream(id, code) })
}

// queueHeader queues a header. Headers are sent in the order in which they are encoded, because the encoder has
// state. The caller must hold mu.
func (c *Conn) queueHeader(id uint32, fields []hpack.HeaderField, end bool) {
	if c.headerBlock.Reset(); len(c.control) > maxControlBytes {
		c.closeFlooded()
		return
	}
	for _, f := range fields {
		_ = c.encoder.WriteField(f) // writes to memory
	}
	rest := c.headerBlock.Bytes()
	fragment := rest[:min(len(rest), c.peerSettings.maxFrame)]
	rest = rest[len(fragment):]
	_ = c.controlFramer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: fragment, EndStream: end, EndHeaders: len(rest) == 0,
	})
	for len(rest) > 0 {
		fragment = rest[:min(len(rest), c.peerSettings.maxFrame)]
		rest = rest[len(fragment):]
		_ = c.controlFramer.WriteContinuation(id, len(rest) == 0, fragment)
	}
	c.work.Signal()
}

// schedule adds a stream to a queue if it can send something. The caller must hold mu.
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

// sendable reports whether the stream can send data or its end.
func (s *Stream) sendable() bool {
	return s.queued > 0 && s.sendWindow > 0 || s.queued == 0 && s.sendEnded && !s.endSent
}

// batchPool holds the memory of batches. A connection uses one only while it writes.
var batchPool = sync.Pool{New: func() any { return new([]byte) }}

// write writes queued frames and data until the connection is closed.
func (c *Conn) write() {
	var done []*Buffer
	for {
		c.mu.Lock()
		for c.err == nil && len(c.control) == 0 &&
			(c.sendWindow <= 0 || c.shortQueue.first == nil && c.longQueue.first == nil) {
			if c.retired && len(c.streams) == 0 {
				c.mu.Unlock()
				if secure, ok := c.netConn.(*tls.Conn); ok {
					_ = tlsbatch.Flush(secure) // an error has already ended the connection
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
		batch := batchPool.Get().(*[]byte)
		*batch, done = c.fillBatch((*batch)[:0], done[:0])
		c.mu.Unlock()
		_, err := c.netConn.Write(*batch)
		if c.settingsSent.Load() == 0 {
			c.settingsSent.Store(now())
		}
		if cap(*batch) <= 4*batchBytes {
			batchPool.Put(batch)
		}
		if err != nil { // the peer may have sent a more specific reason before it closed the connection
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

// fillBatch appends about batchBytes of queued frames to out. First come the frames other than DATA. Then, streams
// with short queues fill up to half of the batch. The other streams take turns with one Buffer each. When all
// bytes of a Buffer are in out, fillBatch adds the Buffer to done. The caller must release the Buffers in done.
func (c *Conn) fillBatch(out []byte, done []*Buffer) ([]byte, []*Buffer) {
	out, c.control, c.pendingReplies = append(out, c.control...), c.control[:0], 0
	if cap(c.control) > batchBytes {
		c.control = nil
	}
	limit := len(out) + batchBytes
	half := len(out) + batchBytes/2
	for c.shortQueue.first != nil && c.sendWindow > 0 &&
		(len(out) < half || c.longQueue.first == nil && len(out) < limit) {
		out, done = c.writeStream(c.shortQueue.pop(), out, done)
	}
	for c.longQueue.first != nil && c.sendWindow > 0 && len(out) < limit {
		out, done = c.writeStream(c.longQueue.pop(), out, done)
	}
	return out, done
}

// writeStream appends a DATA frame of a stream to out. The frame contains one large Buffer, or several small
// Buffers. If the stream can send more, it is queued again.
func (c *Conn) writeStream(s *Stream, out []byte, done []*Buffer) ([]byte, []*Buffer) {
	s.inQueue = false
	if c.streams[s.id] != s {
		return out, done
	}
	limit := min(MaxPiece, int64(s.queued), s.sendWindow, c.sendWindow, int64(c.peerSettings.maxFrame))
	n := s.wholeBuffers(int(max(0, limit)))
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

// wholeBuffers returns the size of the Buffers at the start of the queue that fit into n bytes, so that the
// messages of a stream are not split. If the first Buffer is larger than n bytes, it returns n.
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

// dequeue moves n queued bytes to out. It adds the Buffers that are then empty to done.
func (s *Stream) dequeue(out []byte, n int, done []*Buffer) ([]byte, []*Buffer) {
	s.queued -= n
	for n > 0 {
		b := s.firstBuffer
		data := b.Bytes()[:min(n, b.Len())]
		out = append(out, data...)
		n -= len(data)
		if b.Skip(len(data)); b.Len() > 0 {
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

// removeIfEnded removes a stream that has ended in both directions.
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
	s.stopExpiry()
	if c.isPeerStream(s.id) {
		c.peerStreams--
	}
	c.closeIfIdle()
}

// isPeerStream reports whether the peer has opened the stream. Streams of clients have odd numbers (RFC 9113,
// 5.1.1).
func (c *Conn) isPeerStream(id uint32) bool { return (id%2 == 1) != c.client }
