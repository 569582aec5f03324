package h2

import (
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// briefly, or two round trips, is how long the half of a window lasts at least, if the window is large enough.
	briefly = 25 * time.Millisecond
	// isFew is how many bytes a stream has to send at most to go before those with more.
	isFew = 16 << 10
	// linger is how long what is queued may stay as it is after Close.
	linger = 30 * time.Second
)

// Stream is one stream of a connection.
type Stream struct {
	conn     *Conn
	receiver Receiver
	id       uint32

	// What is to be sent. Under conn.mu.
	first, final *Buffer
	queued       int                 // bytes
	window       int64               // that the other side has left for it
	trailer      []hpack.HeaderField // goes after the data
	ended        bool                // nothing is sent after what is queued
	endSent      bool
	closing      bool          // when all is sent, nothing is received any more either
	code         http2.ErrCode // and the end is a reset, unless this is 0
	waits        bool          // in a queue of the connection
	expiry       *time.Timer
	next         *Stream

	// What arrives. Under conn.mu.
	size    int32 // of its window
	left    int32 // of its window to the other side
	held    int32 // bytes that no Credit has been given for
	spare   int32 // bytes that the other side has not been told of the Credit for
	updated int64 // when it was told last, in nanoseconds
	over    bool  // nothing arrives any more
}

// Conn is the connection that it is a stream of.
func (s *Stream) Conn() *Conn { return s.conn }

// Header sends a header, the first or, with end, one that ends the stream without any data after it.
func (s *Stream) Header(fields []hpack.HeaderField, end bool) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[s.id] != s || s.ended {
		return
	}
	if end && s.queued > 0 {
		s.end(fields)
		return
	}
	c.header(s.id, fields, end)
	if end {
		s.ended, s.endSent = true, true
		c.forget(s)
	}
}

// Send queues data, and takes its Buffer, which is Released when it is written. What is sent after the end is dropped. It does not
// block: who sends heeds what it is given credit for.
func (s *Stream) Send(b *Buffer) {
	c := s.conn
	c.mu.Lock()
	if c.streams[s.id] != s || s.ended || b.Len() == 0 {
		c.mu.Unlock()
		b.Release()
		return
	}
	s.queued += b.Len()
	switch {
	case s.first == nil:
		s.first, s.final = b, b
	case !s.final.Absorb(b):
		s.final.next, s.final = b, b
	}
	c.ready(s)
	c.mu.Unlock()
}

// End sends nothing more after what is queued, but the trailer if there is one. What arrives goes on.
func (s *Stream) End(trailer []hpack.HeaderField) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams[s.id] == s && !s.ended {
		s.end(trailer)
	}
}

func (s *Stream) end(trailer []hpack.HeaderField) {
	s.ended, s.trailer = true, trailer
	s.conn.ready(s)
}

// Close is End, after which nothing is wanted of the other side either: it is told by a reset without an error.
func (s *Stream) Close(trailer []hpack.HeaderField) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.streams[s.id] != s:
	case s.endSent:
		c.hangUp(s)
	case !s.ended:
		s.end(trailer)
		fallthrough
	default:
		s.closing = true
		if s.queued > 0 {
			s.expire()
		}
	}
}

// Expire breaks the stream off, and tells its Receiver, if it has not ended when nothing of what is queued has gone out for a while.
func (s *Stream) Expire() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	s.expire()
}

func (s *Stream) expire() {
	c, queued := s.conn, s.queued
	if c.streams[s.id] != s {
		return
	}
	if s.expiry != nil {
		s.expiry.Stop()
	}
	s.expiry = time.AfterFunc(linger, func() {
		c.mu.Lock()
		moves := s.queued < queued
		if moves {
			s.expire()
		}
		c.mu.Unlock()
		if !moves {
			c.breakOff(s.id, http2.ErrCodeCancel)
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
	c.header(s.id, trailer, true)
	over := s.over
	unsent := s.drop()
	if s.endSent = true; over {
		c.remove(s)
	} else {
		c.hangUp(s)
	}
	c.mu.Unlock()
	releaseAll(unsent)
}

// Break is Reset once what is queued has gone out, or does not go out any more.
func (s *Stream) Break(code http2.ErrCode) {
	c := s.conn
	c.mu.Lock()
	waits := c.streams[s.id] == s && s.queued > 0
	if waits {
		s.ended, s.closing, s.code = true, true, code
		s.expire()
	}
	c.mu.Unlock()
	if !waits {
		s.Reset(code)
	}
}

// hangUp tells the other side that nothing more is wanted of it.
func (c *Conn) hangUp(s *Stream) {
	c.writeReset(s.id, http2.ErrCodeNo)
	s.over = true
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
	c.writeReset(s.id, code)
	unsent := s.drop()
	c.remove(s)
	c.mu.Unlock()
	releaseAll(unsent)
}

// Credit implements Creditor: the other side may send as many.
func (s *Stream) Credit(n int) {
	c := s.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	s.held -= int32(n)
	s.spare += int32(n)
	if s.over || s.spare < s.size/2 || c.streams[s.id] != s {
		return
	}
	at := now()
	if time.Duration(at-s.updated) < max(briefly, 2*c.flight.roundTrip) && s.held <= s.size/2 && s.size < maxWindow {
		s.spare += s.size // its reader keeps up: a larger window keeps a faster connection busy
		s.size *= 2
	}
	s.updated = at
	grant := s.spare
	s.left, s.spare = s.left+grant, 0
	_ = c.out.WriteWindowUpdate(s.id, uint32(grant))
	c.work.Signal()
}

// drop takes what it would have sent, which the caller releases.
func (s *Stream) drop() (unsent *Buffer) {
	unsent = s.first
	s.first, s.final, s.queued, s.ended, s.over = nil, nil, 0, true, true
	return unsent
}

// queue is streams that have something to send.
type queue struct{ first, last *Stream }

func (q *queue) push(s *Stream) {
	if q.first == nil {
		q.first = s
	} else {
		q.last.next = s
	}
	q.last = s
}

func (q *queue) pop() *Stream {
	s := q.first
	if s != nil {
		q.first, s.next = s.next, nil
	}
	return s
}
