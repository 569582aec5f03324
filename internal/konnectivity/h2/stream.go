package h2

import (
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// minHalfWindowTime, or two round trips, is how long the half of a window lasts at least, if the window is large enough.
	minHalfWindowTime = 25 * time.Millisecond
	// shortQueueBytes is how many bytes a stream has to send at most to go before those with more.
	shortQueueBytes = 16 << 10
	// lingerTimeout is how long what is queued may stay as it is after Close.
	lingerTimeout = 30 * time.Second
)

// Stream is one stream of a connection.
type Stream struct {
	conn     *Conn
	receiver Receiver
	id       uint32

	// What is to be sent. Under conn.mu.
	firstBuffer, lastBuffer *Buffer
	queued                  int                 // bytes
	sendWindow              int64               // that the other side has left for it
	trailer                 []hpack.HeaderField // goes after the data
	sendEnded               bool                // nothing is sent after what is queued
	endSent                 bool
	closeAfterSend          bool          // when all is sent, nothing is received any more either
	resetCode               http2.ErrCode // and the end is a reset, unless this is 0
	inQueue                 bool          // in a queue of the connection
	expiryTimer             *time.Timer
	next                    *Stream

	// What arrives. Under conn.mu.
	recvWindow    int32 // of its window
	recvAvailable int32 // of its window to the other side
	uncredited    int32 // bytes that no Credit has been given for
	unannounced   int32 // bytes that the other side has not been told of the Credit for
	lastUpdate    int64 // when it was told last, in nanoseconds
	recvEnded     bool  // nothing arrives any more
}

// Conn is the connection that it is a stream of.
func (s *Stream) Conn() *Conn { return s.conn }

// Header sends a header, the first or, with end, one that ends the stream without any data after it.
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

// Send queues data, and takes its Buffer, which is Released when it is written. What is sent after the end is dropped. It does not
// block: who sends heeds what it is given credit for.
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

// End sends nothing more after what is queued, but the trailer if there is one. What arrives goes on.
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

// Close is End, after which nothing is wanted of the other side either: it is told by a reset without an error.
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

// StartExpiry breaks the stream off, and tells its Receiver, if it has not ended when nothing of what is queued has gone out for a while.
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
	if s.expiryTimer != nil {
		s.expiryTimer.Stop()
	}
	s.expiryTimer = time.AfterFunc(lingerTimeout, func() {
		c.mu.Lock()
		moves := s.queued < queued
		if moves {
			s.startExpiry()
		}
		c.mu.Unlock()
		if !moves {
			c.resetStream(s.id, http2.ErrCodeCancel)
		}
	})
}

// Abort breaks the stream off with a trailer that says why. What is queued is not sent.
func (s *Stream) Abort(trailer []hpack.HeaderField) {
	c := s.conn
	c.mu.Lock()
	if c.streams[s.id] != s || s.endSent {
		c.mu.Unlock()
		return
	}
	c.queueHeader(s.id, trailer, true)
	over := s.recvEnded
	unsent := s.discardQueue()
	if s.endSent = true; over {
		c.remove(s)
	} else {
		c.closeRead(s)
	}
	c.mu.Unlock()
	releaseAll(unsent)
}

// ResetAfterSend is Reset once what is queued has gone out, or does not go out any more.
func (s *Stream) ResetAfterSend(code http2.ErrCode) {
	c := s.conn
	c.mu.Lock()
	waits := c.streams[s.id] == s && s.queued > 0
	if waits {
		s.sendEnded, s.closeAfterSend, s.resetCode = true, true, code
		s.startExpiry()
	}
	c.mu.Unlock()
	if !waits {
		s.Reset(code)
	}
}

// closeRead tells the other side that nothing more is wanted of it.
func (c *Conn) closeRead(s *Stream) {
	c.queueReset(s.id, http2.ErrCodeNo)
	s.recvEnded = true
	c.remove(s)
}

// Reset breaks the stream off. Its Receiver is told nothing more of it, but what it is being told at the moment.
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

// Credit implements Creditor: the other side may send as many.
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
	if time.Duration(at-s.lastUpdate) < max(minHalfWindowTime, 2*c.recvWindow.roundTrip) && s.uncredited <= s.recvWindow/2 && s.recvWindow < maxStreamWindow {
		s.unannounced += s.recvWindow // its reader keeps up: a larger window keeps a faster connection busy
		s.recvWindow *= 2
	}
	s.lastUpdate = at
	grant := s.unannounced
	s.recvAvailable, s.unannounced = s.recvAvailable+grant, 0
	_ = c.controlFramer.WriteWindowUpdate(s.id, uint32(grant))
	c.work.Signal()
}

// discardQueue takes what it would have sent, which the caller releases.
func (s *Stream) discardQueue() (unsent *Buffer) {
	unsent = s.firstBuffer
	s.firstBuffer, s.lastBuffer, s.queued, s.sendEnded, s.recvEnded = nil, nil, 0, true, true
	return unsent
}

// streamQueue is streams that have something to send.
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
