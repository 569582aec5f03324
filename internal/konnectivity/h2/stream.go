package h2

import (
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// minHalfWindowTime affects the growth of receive windows. If half of a stream's window is consumed faster
	// than this time or two round trips, whichever is longer, the window doubles.
	minHalfWindowTime = 25 * time.Millisecond
	// shortQueueBytes is the maximum number of queued bytes for a stream to have priority.
	shortQueueBytes = 16 << 10
	// lingerTimeout is the time without progress after which Close discards the queued data.
	lingerTimeout = 30 * time.Second
)

// Stream is a stream of a connection.
type Stream struct {
	conn     *Conn
	receiver Receiver
	id       uint32

	// Data to send. conn.mu protects these fields.
	firstBuffer, lastBuffer *Buffer
	queued                  int                 // bytes from firstBuffer to lastBuffer
	sendWindow              int64               // bytes that the peer allows for this stream
	trailer                 []hpack.HeaderField // sent after the queued data
	sendEnded               bool                // no more data can be queued
	endSent                 bool                // END_STREAM has been sent
	closeAfterSend          bool                // after the queued data, the stream is also closed for receiving
	resetCode               http2.ErrCode       // if not 0, a reset with this code follows the queued data
	inQueue                 bool                // the stream is in shortQueue or longQueue
	expiryTimer             *time.Timer
	next                    *Stream

	// Received data. conn.mu protects these fields.
	recvWindow    int32 // size of the receive window
	recvAvailable int32 // part of the receive window that the peer may still use
	uncredited    int32 // received bytes that Credit has not returned
	unannounced   int32 // credited bytes for which no WINDOW_UPDATE has been sent
	lastUpdate    int64 // time of the last WINDOW_UPDATE, in nanoseconds since clockStart
	recvEnded     bool  // nothing more is received
}

// newStream returns a stream with the initial windows.
func (c *Conn) newStream(id uint32) *Stream {
	return &Stream{
		conn:          c,
		id:            id,
		sendWindow:    c.peerSettings.streamWindow,
		recvWindow:    initialStreamWindow,
		recvAvailable: initialStreamWindow,
	}
}

// Conn returns the connection of the stream.
func (s *Stream) Conn() *Conn { return s.conn }

// Header sends the first header or, after the queued data, a trailer. end reports whether this side sends nothing
// after the header. For a trailer, end must be true.
func (s *Stream) Header(fields []hpack.HeaderField, end bool) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[s.id] != s || s.sendEnded {
		return
	}
	if end && s.queued > 0 {
		s.endSend(fields)
		return
	}
	c.queueHeader(s.id, fields, end)
	if end {
		s.sendEnded, s.endSent = true, true
		c.removeIfEnded(s)
	}
}

// Send queues a Buffer, and releases it when it has been written. It never blocks: the sender limits itself by
// the credit that it receives. Data after the end of the stream is discarded.
func (s *Stream) Send(b *Buffer) {
	c := s.conn
	c.mu.Lock()
	if c.streams[s.id] != s || s.sendEnded || b.Len() == 0 {
		c.mu.Unlock()
		b.Release()
		return
	}
	s.queued += b.Len()
	switch {
	case s.firstBuffer == nil:
		s.firstBuffer, s.lastBuffer = b, b
	case !s.lastBuffer.TryAppend(b):
		s.lastBuffer.next, s.lastBuffer = b, b
	}
	c.schedule(s)
	c.mu.Unlock()
}

// End ends the sending direction after the queued data, with a trailer unless it is nil. Receiving continues.
func (s *Stream) End(trailer []hpack.HeaderField) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[s.id] == s && !s.sendEnded {
		s.endSend(trailer)
	}
}

func (s *Stream) endSend(trailer []hpack.HeaderField) {
	s.sendEnded, s.trailer = true, trailer
	s.conn.schedule(s)
}

// Close ends the sending direction as End does. It then ends the receiving direction with a reset without an
// error. If the queued data makes no progress for 30 seconds, it is discarded.
func (s *Stream) Close(trailer []hpack.HeaderField) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.streams[s.id] != s:
	case s.endSent:
		c.closeRead(s)
	case !s.sendEnded:
		s.endSend(trailer)
		fallthrough
	default:
		s.closeAfterSend = true
		if s.queued > 0 {
			s.startExpiry()
		}
	}
}

// StartExpiry starts a timer of 30 seconds. If some of the queued data has been sent when it expires, the timer
// starts again. Otherwise the stream is reset, and its Receiver is notified.
func (s *Stream) StartExpiry() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.startExpiry()
}

func (s *Stream) startExpiry() {
	c, queued := s.conn, s.queued
	if c.streams[s.id] != s {
		return
	}
	s.stopExpiry()
	s.expiryTimer = time.AfterFunc(lingerTimeout, func() {
		c.mu.Lock()
		progress := s.queued < queued
		if progress {
			s.startExpiry()
		}
		c.mu.Unlock()
		if !progress {
			c.resetStream(s.id, http2.ErrCodeCancel)
		}
	})
}

// stopExpiry stops the timer, which would keep the stream in memory. The caller must hold the lock of the connection.
func (s *Stream) stopExpiry() {
	if s.expiryTimer != nil {
		s.expiryTimer.Stop()
	}
}

// Abort discards the queued data and ends the stream in both directions, with a trailer that gives the reason.
func (s *Stream) Abort(trailer []hpack.HeaderField) {
	c := s.conn
	c.mu.Lock()
	if c.streams[s.id] != s || s.endSent {
		c.mu.Unlock()
		return
	}
	c.queueHeader(s.id, trailer, true)
	recvEnded := s.recvEnded
	unsent := s.discardQueue()
	if s.endSent = true; recvEnded {
		c.remove(s)
	} else {
		c.closeRead(s)
	}
	c.mu.Unlock()
	releaseAll(unsent)
}

// ResetAfterSend resets the stream after the queued data has been written, or when the queued data makes no
// progress.
func (s *Stream) ResetAfterSend(code http2.ErrCode) {
	c := s.conn
	c.mu.Lock()
	pending := c.streams[s.id] == s && s.queued > 0
	if pending {
		s.sendEnded, s.closeAfterSend, s.resetCode = true, true, code
		s.startExpiry()
	}
	c.mu.Unlock()
	if !pending {
		s.Reset(code)
	}
}

// closeRead sends a reset without an error, which makes the peer stop sending, and removes the stream.
func (c *Conn) closeRead(s *Stream) {
	c.queueReset(s.id, http2.ErrCodeNo)
	s.recvEnded = true
	c.remove(s)
}

// Reset resets the stream and discards the queued data. The Receiver is not notified, but a call of the
// Receiver that is in progress continues.
func (s *Stream) Reset(code http2.ErrCode) {
	c := s.conn
	c.mu.Lock()
	if c.streams[s.id] != s {
		c.mu.Unlock()
		return
	}
	c.queueReset(s.id, code)
	unsent := s.discardQueue()
	c.remove(s)
	c.mu.Unlock()
	releaseAll(unsent)
}

// Credit implements Window: it allows the peer to send n more bytes.
func (s *Stream) Credit(n int) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	s.uncredited -= int32(n)
	s.unannounced += int32(n)
	if s.recvEnded || s.unannounced < s.recvWindow/2 || c.streams[s.id] != s {
		return
	}
	at := now()
	took, limit := time.Duration(at-s.lastUpdate), max(minHalfWindowTime, 2*c.recvWindow.roundTrip)
	if took < limit && s.uncredited <= s.recvWindow/2 && s.recvWindow < maxStreamWindow {
		s.unannounced += s.recvWindow // the reader keeps up and can use a larger window
		s.recvWindow *= 2
	}
	s.lastUpdate = at
	grant := s.unannounced
	s.recvAvailable, s.unannounced = s.recvAvailable+grant, 0
	_ = c.controlFramer.WriteWindowUpdate(s.id, uint32(grant))
	c.work.Signal()
}

// discardQueue ends the stream in both directions and returns the queued data, which the caller must release.
func (s *Stream) discardQueue() (unsent *Buffer) {
	unsent = s.firstBuffer
	s.firstBuffer, s.lastBuffer, s.queued, s.sendEnded, s.recvEnded = nil, nil, 0, true, true
	return unsent
}

// streamQueue is a queue of streams that have something to send.
type streamQueue struct{ first, last *Stream }

func (q *streamQueue) push(s *Stream) {
	if q.first == nil {
		q.first = s
	} else {
		q.last.next = s
	}
	q.last = s
}

func (q *streamQueue) pop() *Stream {
	s := q.first
	if s != nil {
		q.first, s.next = s.next, nil
	}
	return s
}
