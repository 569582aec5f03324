package storage

import (
	"strings"
	"sync"
	"sync/atomic"
)

// Cursor delivers the events of a prefix in order, none twice, none left out.
// It is used by one goroutine.
type Cursor struct {
	hub    *hub
	of     *Replica
	prefix string
	filter bool // the topic holds more than the prefix
	topic  *topic
	index  int // in topic.cursors; guarded by hub.mu
	ready  chan struct{}

	floor int64 // what is not newer has been seen before the cursor was opened
	after int64 // all up to here has been delivered
	join  int64 // events up to here come from the history, later ones from the topic

	read    atomic.Int64 // events of the topic that have been looked at
	bytes   atomic.Int64 // their cost
	closing atomic.Bool  // the store is; what is there is delivered first
	missed  atomic.Bool  // events that will never come

	mu    sync.Mutex // guards what follows against the dispatcher
	chunk *chunk
	at    int32
	err   error
	left  bool
}

// takeAtOnce bounds what one Take returns.
const takeAtOnce = 512

// Ready receives when Take may have something new (events, progress or an error).
// Progress alone, because of changes elsewhere, is not announced.
func (c *Cursor) Ready() <-chan struct{} { return c.ready }

// Take appends what is ready to buf without blocking on other goroutines; the events
// before a fresh cursor's time may have to be read from disk. It appends a bounded
// number and lets Ready receive again if there is more. Every event up to revision
// progress that belongs to the prefix has then been delivered. The error is final:
// ErrLagging or ErrClosed, or what went wrong with reading old events.
func (c *Cursor) Take(buf []*Event) (events []*Event, progress int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return buf, c.after, c.err
	}
	if c.missed.Load() {
		c.err = ErrLagging
		return buf, c.after, c.err
	}
	room := len(buf) + takeAtOnce
	for c.after < c.join {
		if len(buf) >= room {
			poke(c.ready)
			return buf, c.after, nil
		}
		if buf, err = c.catchUp(buf, room-len(buf)); err != nil {
			c.err = err
			return buf, c.after, err
		}
	}
	closing := c.closing.Load()
	published := c.hub.published.Load()
	buf, next := c.drain(buf, room)
	switch {
	case next != nil:
		c.after = max(c.after, next.Revision-1) // there may be more of that revision
		poke(c.ready)
	case closing:
		c.err = ErrClosed
		return buf, c.after, c.err
	default:
		c.after = max(c.after, published)
	}
	return buf, c.after, nil
}

// catchUp appends about n events of the time before the cursor joined its topic: all of a revision or none.
func (c *Cursor) catchUp(buf []*Event, n int) ([]*Event, error) {
	st := c.hub.history.state.Load()
	if c.after < st.base {
		return c.replay(buf, min(c.join, st.base))
	}
	for _, e := range st.since(c.after) {
		if e.Revision > c.join {
			break
		}
		if n <= 0 && e.Revision > c.after {
			return buf, nil
		}
		c.after = e.Revision
		if strings.HasPrefix(e.Key, c.prefix) {
			buf = append(buf, e)
			n--
		}
	}
	c.after = c.join
	return buf, nil
}

// replay appends events of the past.
func (c *Cursor) replay(buf []*Event, until int64) ([]*Event, error) {
	if c.after < c.hub.history.oldest.Load() {
		return buf, ErrLagging
	}
	events, reached, err := c.of.past.Replay(c.of.lifetime, c.prefix, c.after, until)
	if err != nil {
		return buf, reading(err)
	}
	c.after = reached
	return append(buf, events...), nil
}

// drain appends what the topic holds; next is the first that there was no room for.
func (c *Cursor) drain(buf []*Event, room int) (_ []*Event, next *Event) {
	read, bytes := c.read.Load(), c.bytes.Load()
	defer func() {
		c.read.Store(read)
		c.bytes.Store(bytes)
	}()
	for {
		n := c.chunk.n.Load()
		for ; c.at < n; c.at++ {
			e := c.chunk.events[c.at]
			if len(buf) >= room {
				return buf, e
			}
			read++
			bytes += e.HistoryCost()
			if e.Revision > c.floor && (!c.filter || strings.HasPrefix(e.Key, c.prefix)) {
				buf = append(buf, e)
			}
		}
		if n < chunkSize {
			return buf, nil
		}
		next := c.chunk.next.Load()
		if next == nil {
			return buf, nil // the dispatcher is about to add it
		}
		c.chunk, c.at = next, 0
	}
}

// end makes err the final one and lets go of the queue, which a cursor that is
// not read would keep from the collector. A cursor that is being read right now is
// left alone.
func (c *Cursor) end(err error) {
	if !c.mu.TryLock() {
		return
	}
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
		c.chunk = nil
	}
}

// Close releases the cursor. It may be called twice.
func (c *Cursor) Close() {
	c.mu.Lock()
	left := c.left
	c.left = true
	if c.err == nil {
		c.err = ErrClosed
	}
	c.chunk = nil
	c.mu.Unlock()
	if !left {
		c.hub.leave(c)
	}
}
