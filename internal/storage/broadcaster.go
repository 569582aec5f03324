package storage

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// broadcaster delivers published events to cursors. Each watched prefix has one queue, which all
// cursors of this prefix read. An event is appended to the queue of every prefix of its key that
// ends in '/'. Cursors of other prefixes never see the event.
//
// Delivery runs in a separate goroutine. A commit therefore returns without waiting for its watchers,
// and the events of several commits are delivered in one batch.
type broadcaster struct {
	history   *history
	options   ReplicaOptions
	published atomic.Int64 // all events up to this revision are in their queues
	ready     chan struct{}

	mu            sync.Mutex
	queues        map[string]*queue
	progressWaits []progressWait
	closed        bool
	stop          chan struct{}
}

// queue holds the events below one prefix, for all cursors of this prefix.
type queue struct {
	prefix  string
	tail    *chunk
	events  int64 // number of events ever appended
	bytes   int64 // their cost
	cursors []*Cursor
	dirty   bool // has new events in the running call of deliver
}

// chunk is one element of the linked list that makes up a queue. Only the dispatcher writes it, in order.
// Cursors read it without a lock: n is the number of events, and next is set after n has reached chunkSize.
// A chunk becomes garbage once every cursor has moved on.
type chunk struct {
	n      atomic.Int32
	next   atomic.Pointer[chunk]
	events [chunkSize]*Event
}

const chunkSize = 32

func (b *broadcaster) init(history *history, o ReplicaOptions) {
	b.history, b.options = history, o
	b.queues = map[string]*queue{}
	b.ready = make(chan struct{}, 1)
	b.stop = make(chan struct{})
	b.published.Store(history.state.Load().head.revision)
}

// trigger makes dispatch look for new events in the history.
func (b *broadcaster) trigger() { signal(b.ready) }

// dispatch delivers events until close is called. Events published before close are still delivered.
func (b *broadcaster) dispatch() {
	for open := true; open; {
		select {
		case <-b.ready:
		case <-b.stop:
			open = false
		}
		b.deliver()
	}
	b.endAll()
}

// deliver appends new events to the queues and notifies their cursors.
func (b *broadcaster) deliver() {
	b.mu.Lock()
	defer b.mu.Unlock()
	st := b.history.state.Load()
	from := b.published.Load()
	if st.head.revision == from {
		return
	}
	var touched []*queue
	if len(b.queues) > 0 {
		for _, e := range st.since(from) {
			touched = b.enqueue(e, touched)
		}
	}
	b.published.Store(st.head.revision)
	b.signalProgress(st.head.revision)
	for _, q := range touched {
		q.dirty = false
		q.notify(b.options)
	}
}

// enqueue appends e to the queue of each prefix of its key that ends in '/'. It appends the queues that become
// dirty to the slice touched and returns the result.
func (b *broadcaster) enqueue(e *Event, touched []*queue) []*queue {
	for end := 0; ; {
		if q := b.queues[e.Key[:end]]; q != nil {
			q.append(e)
			if !q.dirty {
				q.dirty = true
				touched = append(touched, q)
			}
		}
		i := strings.IndexByte(e.Key[end:], '/')
		if i < 0 {
			return touched
		}
		end += i + 1
	}
}

func (q *queue) append(e *Event) {
	c := q.tail
	n := c.n.Load()
	c.events[n] = e
	c.n.Store(n + 1)
	if n+1 == chunkSize {
		q.tail = new(chunk)
		c.next.Store(q.tail)
	}
	q.events++
	q.bytes += e.HistoryCost()
}

// notify signals the cursors of q, and ends those that have fallen too far behind.
func (q *queue) notify(o ReplicaOptions) {
	for _, c := range q.cursors {
		behind := q.events - c.read.Load()
		if behind > int64(o.LagEvents) || behind > chunkSize && q.bytes-c.bytes.Load() > o.LagBytes {
			c.end(ErrLagging)
		}
		signal(c.ready)
	}
}

// endAll ends all cursors with ErrClosed, after they have delivered the events of their queues.
func (b *broadcaster) endAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, q := range b.queues {
		for _, c := range q.cursors {
			c.closing.Store(true)
			signal(c.ready)
		}
	}
}

func (b *broadcaster) close() { close(b.stop) }

// reset moves b to the head of the history. All cursors end with ErrLagging, because they have missed events.
func (b *broadcaster) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	head := b.history.state.Load().head.revision
	b.published.Store(head)
	b.signalProgress(head)
	for _, q := range b.queues {
		for _, c := range q.cursors {
			c.missed.Store(true)
			signal(c.ready)
		}
	}
}

// boundary returns prefix up to its last '/'. Only such prefixes have queues.
func boundary(prefix string) string { return prefix[:strings.LastIndexByte(prefix, '/')+1] }

// open returns a cursor on the events after the given revision. The caller has checked that the revision can be
// read.
func (b *broadcaster) open(r *Replica, prefix string, after int64) *Cursor {
	c := &Cursor{
		broadcaster: b, replica: r, prefix: prefix, delivered: after, start: after,
		ready: make(chan struct{}, 1),
	}
	key := boundary(prefix)
	c.filter = key != prefix
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[key]
	if q == nil {
		q = &queue{prefix: key, tail: new(chunk)}
		b.queues[key] = q
	}
	c.queue, c.chunk, c.position = q, q.tail, q.tail.n.Load()
	c.read.Store(q.events)
	c.bytes.Store(q.bytes)
	c.index = len(q.cursors)
	q.cursors = append(q.cursors, c)
	c.joined = b.published.Load()
	c.closing.Store(b.closed)
	signal(c.ready)
	return c
}

// count returns the number of cursors.
func (b *broadcaster) count() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, q := range b.queues {
		n += len(q.cursors)
	}
	return n
}

// remove removes c from its queue. It also deletes the queue if c was its last cursor.
func (b *broadcaster) remove(c *Cursor) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := c.queue
	last := len(q.cursors) - 1
	q.cursors[c.index] = q.cursors[last]
	q.cursors[c.index].index = c.index
	q.cursors[last] = nil
	q.cursors = q.cursors[:last]
	if last == 0 {
		delete(b.queues, q.prefix)
	}
	b.progressWaits = slices.DeleteFunc(b.progressWaits, func(w progressWait) bool { return w.cursor == c })
}
