package flowcontrol

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/shufflesharding"

	"github.com/trellis-k8s/trellis/internal/access"
)

// estimate is what a request is taken to last until it has ended, in seconds; upstream's.
const estimate = 0.003

// level is a priority level. Its requests take a seat each; where there is none, they wait in queues, of which the one is next
// that has been served least: Start-time Fair Queuing (Goyal, Vin and Cheng, 1996), at work in seat-seconds.
type level struct {
	name, uid string
	exempt    bool

	mu           sync.Mutex
	flows        map[string]*counts // by FlowSchema
	limit        int                // of seats at the moment: between lower and upper, which is nominal and what may be lent and borrowed
	nominal      int
	lower, upper int
	queueLength  int
	dealer       *shufflesharding.Dealer // nil: who gets no seat is refused
	queues       []*queue
	waiting      []*queue // those in which somebody waits, what was dispatched from last at the end
	executing    int
	queued       int
	virtual      float64 // how far the queues have been served
	quiescing    bool    // its object is gone; the last requests end

	// What a dump shows.
	running    []holder // the requests in execution
	unused     []int    // of these, the indices without a request
	dispatched int
	rejected   int
	canceled   int // in a queue, as their time had run out

	// What would be executing if there were seats for all, since when it has been looked at last.
	noted    time.Time
	demand   fairqueuing.Moments
	peak     int
	smoothed float64
}

// counts are those of one FlowSchema at a level, under its mutex.
type counts struct{ executing, queued, dispatched int }

type queue struct {
	next      float64 // where its next request starts, in virtual time
	waiters   []*waiter
	executing int // of those that have waited in it
}

// holder is a request that waits for a seat or has one. It is zero where there is none.
type holder struct {
	flow    *flow
	queue   *queue // that it waits in or has waited in; nil: none
	request *access.Attributes
	arrived time.Time
	started time.Time // zero while it waits
}

// bound keeps a queue from making up for a time when nobody waited in it.
func (q *queue) bound() {
	if len(q.waiters) > 0 {
		q.next = max(q.next, q.waiters[0].arrived)
	}
}

type waiter struct {
	holder
	ready      chan struct{} // closed with its turn
	dispatched bool
	index      int     // in running, once it is dispatched
	arrived    float64 // in virtual time
}

func (l *level) countsOf(schema string) *counts {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.flows[schema] == nil {
		l.flows[schema] = &counts{}
	}
	return l.flows[schema]
}

// note keeps account of the demand until now; what follows changes it.
func (l *level) note(now time.Time) {
	if passed := now.Sub(l.noted); passed > 0 {
		l.demand = l.demand.Add(fairqueuing.ConstantMoments(passed.Seconds(), float64(l.executing+l.queued)))
		l.noted = now
	}
}

// take gives a request a seat, or has it wait for one, or says why it gets none, in upstream's words.
func (l *level) take(f *flow, a *access.Attributes, now time.Time) (s Seat, w *waiter, why string) {
	s = Seat{flow: f, taken: now}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.exempt || l.free() && l.queued == 0:
		l.note(now)
		s.index = l.execute(holder{flow: f, request: a, arrived: now, started: now})
		return s, nil, ""
	case l.dealer == nil:
		why = "concurrency-limit"
	default:
		if w, s.queue = l.enqueue(f, a, now); w != nil {
			return s, w, ""
		}
		why = "queue-full"
	}
	l.rejected++
	return s, nil, why
}

// free says that there is a seat. One that has no seats at all, and no queues, still serves one request after the other, as upstream's does.
func (l *level) free() bool {
	return l.executing < l.limit || l.executing == 0 && l.dealer == nil
}

// execute enters a request that has a seat and returns its index.
func (l *level) execute(h holder) (index int) {
	l.executing++
	l.dispatched++
	l.peak = max(l.peak, l.executing+l.queued)
	if of := h.flow.counts; of != nil {
		of.executing++
		of.dispatched++
	}
	if last := len(l.unused) - 1; last >= 0 {
		index, l.unused = l.unused[last], l.unused[:last]
		l.running[index] = h
		return index
	}
	l.running = append(l.running, h)
	return len(l.running) - 1
}

// enqueue has a request wait in the shortest of the queues that its flow is dealt; nil: there is no room.
func (l *level) enqueue(f *flow, a *access.Attributes, now time.Time) (*waiter, *queue) {
	var hand [8]int
	var q *queue
	for _, i := range l.dealer.DealIntoHand(f.hash(a), hand[:]) {
		if q == nil || len(l.queues[i].waiters) < len(q.waiters) {
			q = l.queues[i]
		}
	}
	if len(q.waiters) >= l.queueLength {
		return nil, nil
	}
	l.note(now)
	if len(q.waiters) == 0 {
		l.waiting = append(l.waiting, q)
	}
	w := &waiter{holder: holder{flow: f, queue: q, request: a, arrived: now}, ready: make(chan struct{}), arrived: l.virtual}
	q.waiters = append(q.waiters, w)
	q.bound()
	l.queued++
	l.peak = max(l.peak, l.executing+l.queued)
	f.counts.queued++
	l.dispatch()
	return w, q
}

// hash is of what tells the flows of a FlowSchema apart.
func (f *flow) hash(a *access.Attributes) uint64 {
	id := f.schema + "\x00"
	switch f.by {
	case flowcontrolv1.FlowDistinguisherMethodByUserType:
		id += a.User.GetName()
	case flowcontrolv1.FlowDistinguisherMethodByNamespaceType:
		id += a.Namespace
	}
	sum := sha256.Sum256([]byte(id))
	return binary.LittleEndian.Uint64(sum[:8])
}

// dispatch gives the seats that are free to those whose turn it is.
func (l *level) dispatch() {
	for l.executing < l.limit && len(l.waiting) > 0 {
		q := slices.MinFunc(l.waiting, func(a, b *queue) int {
			switch { // of those that are alike, the first
			case a.next < b.next:
				return -1
			case a.next > b.next:
				return 1
			}
			return 0
		})
		w := q.waiters[0]
		l.virtual = max(l.virtual, q.next)
		q.next += estimate
		w.dispatched = true
		l.drop(q, w)
		w.started = l.noted
		w.index = l.execute(w.holder)
		q.executing++
		close(w.ready)
	}
}

// drop takes a waiter out of its queue, which is then the last of those that are alike.
func (l *level) drop(q *queue, w *waiter) {
	q.waiters = slices.DeleteFunc(q.waiters, func(x *waiter) bool { return x == w })
	l.waiting = slices.DeleteFunc(l.waiting, func(x *queue) bool { return x == q })
	if len(q.waiters) > 0 {
		l.waiting = append(l.waiting, q)
	}
	q.bound()
	l.queued--
	w.flow.counts.queued--
}

// keep says that a waiter has a seat, and takes it out of its queue if it has none.
func (l *level) keep(w *waiter, s *Seat, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.index = w.index
	if !w.dispatched {
		l.note(now)
		l.drop(s.queue, w)
		l.rejected++
		l.canceled++
	}
	return w.dispatched
}

func (l *level) release(s *Seat, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.note(now)
	l.executing--
	if s.flow.counts != nil {
		s.flow.counts.executing--
	}
	l.running[s.index] = holder{}
	l.unused = append(l.unused, s.index)
	if q := s.queue; q != nil {
		q.executing--
		q.next += now.Sub(s.taken).Seconds() - estimate
		q.bound()
	}
	l.dispatch()
}
