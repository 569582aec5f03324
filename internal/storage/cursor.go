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
	log    Log
	prefix string
	filter bool // the topic holds more than the prefix
	topic  *topic
	index  int // in topic.cursors; guarded by hub.mu
	ready  chan struct{}

	after int64 // all up to here has been delivered
	join  int64 // events up to here come from the history, later ones from the topic

	read    atomic.Int64 // events of the topic that have been looked at
	bytes   atomic.Int64 // their cost
	closing atomic.Bool  // the store is; what is there is delivered first

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
	buf, drained := c.drain(buf, room)
	switch {
	case !drained:
		poke(c.ready)
	case closing:
		c.err = ErrClosed
		return buf, c.after, c.err
	default:
		c.after = max(c.after, published)
	}
	return buf, c.after, nil
}

// catchUp appends up to n events of the time before the cursor joined its topic.
func (c *Cursor) catchUp(buf []*Event, n int) ([]*Event, error) {
	st := c.hub.history.state.Load()
	if c.after < st.base() {
		return c.replay(buf, min(c.join, st.base()))
	}
	for _, e := range st.since(c.after)[:c.join-c.after] {
		if n == 0 {
			return buf, nil
		}
		c.after = e.Revision
		if strings.HasPrefix(e.Key, c.prefix) {
			buf = append(buf, e)
			n--
		}
	}
	return buf, nil
}

// replay appends events from the log.
func (c *Cursor) replay(buf []*Event, until int64) ([]*Event, error) {
	h := c.hub.history
	h.maintenance.RLock()
	defer h.maintenance.RUnlock()
	if h.gone {
		return buf, ErrClosed
	}
	if c.after < h.oldest.Load() {
		return buf, ErrLagging
	}
	events, reached, err := c.log.Replay(c.prefix, c.after, until)
	if err != nil {
		return buf, reading(err)
	}
	c.after = reached
	return append(buf, events...), nil
}

// drain appends what the topic holds and says whether that is all.
func (c *Cursor) drain(buf []*Event, room int) (_ []*Event, drained bool) {
	read, bytes := c.read.Load(), c.bytes.Load()
	defer func() {
		c.read.Store(read)
		c.bytes.Store(bytes)
	}()
	for {
		n := c.chunk.n.Load()
		for ; c.at < n; c.at++ {
			if len(buf) >= room {
				return buf, false
			}
			e := c.chunk.events[c.at]
			read++
			bytes += e.HistoryCost()
			if e.Revision <= c.after {
				continue // seen before the cursor joined
			}
			c.after = e.Revision
			if !c.filter || strings.HasPrefix(e.Key, c.prefix) {
				buf = append(buf, e)
			}
		}
		if n < chunkSize {
			return buf, true
		}
		next := c.chunk.next.Load()
		if next == nil {
			return buf, true // the dispatcher is about to add it
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
