package storage

import (
	"strings"
	"sync"
	"sync/atomic"
)

// Cursor delivers the events below a prefix in order, each exactly once.
// It must be used by one goroutine at a time.
type Cursor struct {
	broadcaster *broadcaster
	replica     *Replica
	prefix      string
	filter      bool // the queue may hold events outside the prefix
	queue       *queue
	index       int // index in queue.cursors; guarded by broadcaster.mu
	ready       chan struct{}

	start     int64 // the revision after which the cursor was opened
	delivered int64 // all events up to this revision have been delivered
	joined    int64 // events up to this revision come from the history, later ones from the queue

	read    atomic.Int64 // number of events read from the queue
	bytes   atomic.Int64 // their cost
	closing atomic.Bool  // the store is closing; events in the queue are delivered first
	missed  atomic.Bool  // events have been skipped, so the cursor must end

	mu       sync.Mutex // guards the fields below against the dispatcher
	chunk    *chunk
	position int32 // index of the next event in chunk
	err      error
	closed   bool
}

// maxTake is the maximum number of events that one Take returns.
const maxTake = 512

// Ready returns a channel that receives when Take may return events or an error. It also receives when Take may
// return the progress that Await has requested. Progress caused by changes outside the prefix sends no other
// signals.
func (c *Cursor) Ready() <-chan struct{} { return c.ready }

// Take appends the available events to buf. It does not wait for other goroutines, but a new cursor may have to
// read older events from the disk. The number of appended events is bounded. Ready fires again if there are more.
// After the call, all events below the prefix have been delivered up to the returned revision. An error is final:
// ErrLagging, ErrClosed, or an error from reading older events.
func (c *Cursor) Take(buf []*Event) (events []*Event, progress int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return buf, c.delivered, c.err
	}
	if c.missed.Load() {
		c.err = ErrLagging
		return buf, c.delivered, c.err
	}
	limit := len(buf) + maxTake
	for c.delivered < c.joined {
		if len(buf) >= limit {
			signal(c.ready)
			return buf, c.delivered, nil
		}
		if buf, err = c.catchUp(buf, limit-len(buf)); err != nil {
			c.err = err
			return buf, c.delivered, err
		}
	}
	closing := c.closing.Load()
	published := c.broadcaster.published.Load()
	buf, next := c.drain(buf, limit)
	switch {
	case next != nil:
		c.delivered = max(c.delivered, next.Revision-1) // further events of this revision may follow
		signal(c.ready)
	case closing:
		c.err = ErrClosed
		return buf, c.delivered, c.err
	default:
		c.delivered = max(c.delivered, published)
	}
	return buf, c.delivered, nil
}

// catchUp appends about n events that precede the cursor's queue. It appends either all events of a revision or
// none.
func (c *Cursor) catchUp(buf []*Event, n int) ([]*Event, error) {
	st := c.broadcaster.history.state.Load()
	if c.delivered < st.base {
		return c.replay(buf, min(c.joined, st.base))
	}
	for _, e := range st.since(c.delivered) {
		if e.Revision > c.joined {
			break
		}
		if n <= 0 && e.Revision > c.delivered {
			return buf, nil
		}
		c.delivered = e.Revision
		if strings.HasPrefix(e.Key, c.prefix) {
			buf = append(buf, e)
			n--
		}
	}
	c.delivered = c.joined
	return buf, nil
}

// replay appends events that are no longer in memory.
func (c *Cursor) replay(buf []*Event, until int64) ([]*Event, error) {
	if c.delivered < c.broadcaster.history.oldest.Load() {
		return buf, ErrLagging
	}
	events, reached, err := c.replica.reader.Replay(c.replica.lifetime, c.prefix, c.delivered, until)
	if err != nil {
		return buf, readError(err)
	}
	c.delivered = reached
	return append(buf, events...), nil
}

// drain appends events from the queue until the length of buf is limit. next is the first event that did not fit,
// or nil.
func (c *Cursor) drain(buf []*Event, limit int) (_ []*Event, next *Event) {
	read, bytes := c.read.Load(), c.bytes.Load()
	defer func() {
		c.read.Store(read)
		c.bytes.Store(bytes)
	}()
	for {
		n := c.chunk.n.Load()
		for ; c.position < n; c.position++ {
			e := c.chunk.events[c.position]
			if len(buf) >= limit {
				return buf, e
			}
			read++
			bytes += e.HistoryCost()
			if e.Revision > c.start && (!c.filter || strings.HasPrefix(e.Key, c.prefix)) {
				buf = append(buf, e)
			}
		}
		if n < chunkSize {
			return buf, nil
		}
		next := c.chunk.next.Load()
		if next == nil {
			return buf, nil // the dispatcher has filled the chunk and is about to link the next one
		}
		c.chunk, c.position = next, 0
	}
}

// end sets the final error and drops the reference to the queue. The events of an unread cursor can then be freed.
// end does nothing while a Take is running.
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
	left := c.closed
	c.closed = true
	if c.err == nil {
		c.err = ErrClosed
	}
	c.chunk = nil
	c.mu.Unlock()
	if !left {
		c.broadcaster.remove(c)
	}
}
