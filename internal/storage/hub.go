package storage

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// hub hands published events to cursors. Each watched prefix has one topic; an
// event goes once into the topic of every '/' boundary of its key, however many
// cursors read it there, and cursors on other prefixes never see it.
//
// A goroutine of its own does that, so that a commit is answered without waiting
// for its watchers, and what many commits leave is handed on at once.
type hub struct {
	history   *history
	options   ReplicaOptions
	published atomic.Int64 // all events up to here are in their topics
	ready     chan struct{}

	mu       sync.Mutex
	topics   map[string]*topic
	awaiting []awaited
	closed   bool
	stop     chan struct{}
}

// topic is the queue of the events below one prefix.
type topic struct {
	prefix  string
	tail    *chunk
	events  int64 // ever appended
	bytes   int64 // their cost
	cursors []*Cursor
	touched bool // in the dispatch that runs
}

// chunk is a piece of a topic's queue. It is written by the dispatcher, in order,
// and read without a lock: n says how many events are there, next follows when
// they are chunkSize. Readers that are done with a chunk leave it to the collector.
type chunk struct {
	n      atomic.Int32
	next   atomic.Pointer[chunk]
	events [chunkSize]*Event
}

const chunkSize = 32

func (h *hub) init(history *history, o ReplicaOptions) {
	h.history, h.options = history, o
	h.topics = map[string]*topic{}
	h.ready = make(chan struct{}, 1)
	h.stop = make(chan struct{})
	h.published.Store(history.state.Load().head.revision)
}

// signal says that the history has something new.
func (h *hub) signal() { poke(h.ready) }

// dispatch hands on events until the hub is closed, those published before
// included.
func (h *hub) dispatch() {
	for open := true; open; {
		select {
		case <-h.ready:
		case <-h.stop:
			open = false
		}
		h.deliver()
	}
	h.end()
}

// deliver puts what is new into the topics and wakes their cursors.
func (h *hub) deliver() {
	h.mu.Lock()
	defer h.mu.Unlock()
	st := h.history.state.Load()
	from := h.published.Load()
	if st.head.revision == from {
		return
	}
	var touched []*topic
	if len(h.topics) > 0 {
		for _, e := range st.since(from) {
			touched = h.sort(e, touched)
		}
	}
	h.published.Store(st.head.revision)
	h.announce(st.head.revision)
	for _, t := range touched {
		t.touched = false
		t.wake(h.options)
	}
}

// sort appends e to the topic of each boundary of its key.
func (h *hub) sort(e *Event, touched []*topic) []*topic {
	for end := 0; ; {
		if t := h.topics[e.Key[:end]]; t != nil {
			t.append(e)
			if !t.touched {
				t.touched = true
				touched = append(touched, t)
			}
		}
		i := strings.IndexByte(e.Key[end:], '/')
		if i < 0 {
			return touched
		}
		end += i + 1
	}
}

func (t *topic) append(e *Event) {
	c := t.tail
	n := c.n.Load()
	c.events[n] = e
	c.n.Store(n + 1)
	if n+1 == chunkSize {
		t.tail = new(chunk)
		c.next.Store(t.tail)
	}
	t.events++
	t.bytes += e.HistoryCost()
}

// wake tells the cursors of t to look, and cuts off those too far behind.
func (t *topic) wake(o ReplicaOptions) {
	for _, c := range t.cursors {
		behind := t.events - c.read.Load()
		if behind > int64(o.LagEvents) || behind > chunkSize && t.bytes-c.bytes.Load() > o.LagBytes {
			c.end(ErrLagging)
		}
		poke(c.ready)
	}
}

// end ends all cursors.
func (h *hub) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, t := range h.topics {
		for _, c := range t.cursors {
			c.closing.Store(true)
			poke(c.ready)
		}
	}
}

func (h *hub) close() { close(h.stop) }

// reset goes on from the head, and ends the cursors, which have missed something.
func (h *hub) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	head := h.history.state.Load().head.revision
	h.published.Store(head)
	h.announce(head)
	for _, t := range h.topics {
		for _, c := range t.cursors {
			c.missed.Store(true)
			poke(c.ready)
		}
	}
}

// boundary is the longest prefix of a prefix that can have a topic.
func boundary(prefix string) string { return prefix[:strings.LastIndexByte(prefix, '/')+1] }

// open returns a cursor on the events after a revision that exists.
func (h *hub) open(of *Replica, prefix string, after int64) *Cursor {
	c := &Cursor{
		hub: h, of: of, prefix: prefix, after: after, floor: after,
		ready: make(chan struct{}, 1),
	}
	key := boundary(prefix)
	c.filter = key != prefix
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[key]
	if t == nil {
		t = &topic{prefix: key, tail: new(chunk)}
		h.topics[key] = t
	}
	c.topic, c.chunk, c.at = t, t.tail, t.tail.n.Load()
	c.read.Store(t.events)
	c.bytes.Store(t.bytes)
	c.index = len(t.cursors)
	t.cursors = append(t.cursors, c)
	c.join = h.published.Load()
	c.closing.Store(h.closed)
	poke(c.ready)
	return c
}

// leave takes c out of its topic.
func (h *hub) leave(c *Cursor) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := c.topic
	last := len(t.cursors) - 1
	t.cursors[c.index] = t.cursors[last]
	t.cursors[c.index].index = c.index
	t.cursors[last] = nil
	t.cursors = t.cursors[:last]
	if last == 0 {
		delete(h.topics, t.prefix)
	}
	h.awaiting = slices.DeleteFunc(h.awaiting, func(a awaited) bool { return a.cursor == c })
}
