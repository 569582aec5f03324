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

// workEstimate is the assumed duration of a request in seconds, before it has ended. The value is upstream's.
const workEstimate = 0.003

// level is a priority level. Each request takes one seat. If no seat is free, requests wait in queues. The next request
// comes from the queue that has received the least work: Start-time Fair Queuing (Goyal, Vin and Cheng, 1996), with
// work measured in seat-seconds.
type level struct {
	name, uid string
	exempt    bool

	mu      sync.Mutex
	flows   map[string]*counts // by FlowSchema
	limit   int                // current number of seats, between lower and upper
	nominal int                // configured number of seats
	// lower is nominal minus the seats that the level may lend. upper is nominal plus the seats that it may borrow.
	lower, upper     int
	queueLengthLimit int
	dealer           *shufflesharding.Dealer // nil if requests are rejected instead of queued
	queues           []*queue
	nonEmpty         []*queue // queues with waiters; the queue that was served last is at the end
	executing        int
	queued           int
	virtualTime      float64 // the virtual time of Start-time Fair Queuing
	quiescing        bool    // the object is deleted, and the last requests are still in progress

	// The fields below are shown in dumps.
	running    []holder // the requests in execution
	unused     []int    // free indices in running
	dispatched int
	rejected   int
	canceled   int // number of requests that timed out in a queue

	// The fields below record the demand for seats: the number of executing and queued requests.
	recordedAt time.Time           // time up to which demand is recorded
	demand     fairqueuing.Moments // since the last adjustment
	peak       int                 // since the last adjustment
	smoothed   float64
}

// counts holds the counters of one FlowSchema at a level. The level's mutex guards them.
type counts struct{ executing, queued, dispatched int }

type queue struct {
	nextStart float64 // virtual start time of the queue's next request
	waiters   []*waiter
	executing int // number of executing requests that waited in the queue
}

// holder is a request that waits for a seat or has a seat. The zero value means no request.
type holder struct {
	flow    *flow
	queue   *queue // the queue of the request; nil if it did not wait
	request *access.Attributes
	arrived time.Time
	started time.Time // zero while the request waits
}

// dropCredit keeps a queue from gaining credit while it is empty.
func (q *queue) dropCredit() {
	if len(q.waiters) > 0 {
		q.nextStart = max(q.nextStart, q.waiters[0].arrived)
	}
}

type waiter struct {
	holder
	ready      chan struct{} // closed when the request is dispatched
	dispatched bool
	index      int     // index in level.running, once the request is dispatched
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

// recordDemand adds the demand since recordedAt to the statistics. Callers call it before they change the demand.
func (l *level) recordDemand(now time.Time) {
	if elapsed := now.Sub(l.recordedAt); elapsed > 0 {
		l.demand = l.demand.Add(fairqueuing.ConstantMoments(elapsed.Seconds(), float64(l.executing+l.queued)))
		l.recordedAt = now
	}
}

// admit gives a request a seat, enqueues it and returns its waiter, or rejects it and returns upstream's reason.
func (l *level) admit(f *flow, a *access.Attributes, now time.Time) (s Seat, w *waiter, reason string) {
	s = Seat{flow: f, taken: now}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.exempt || l.hasFreeSeat() && l.queued == 0:
		l.recordDemand(now)
		s.index = l.execute(holder{flow: f, request: a, arrived: now, started: now})
		return s, nil, ""
	case l.dealer == nil:
		reason = "concurrency-limit"
	default:
		if w, s.queue = l.enqueue(f, a, now); w != nil {
			return s, w, ""
		}
		reason = "queue-full"
	}
	l.rejected++
	return s, nil, reason
}

// hasFreeSeat reports whether a seat is free. A level with no seats and no queues executes one request at a time, as in
// upstream.
func (l *level) hasFreeSeat() bool {
	return l.executing < l.limit || l.executing == 0 && l.dealer == nil
}

// execute records a request that has a seat and returns its index in running.
func (l *level) execute(h holder) (index int) {
	l.executing++
	l.dispatched++
	l.peak = max(l.peak, l.executing+l.queued)
	if c := h.flow.counts; c != nil {
		c.executing++
		c.dispatched++
	}
	if last := len(l.unused) - 1; last >= 0 {
		index, l.unused = l.unused[last], l.unused[:last]
		l.running[index] = h
		return index
	}
	l.running = append(l.running, h)
	return len(l.running) - 1
}

// enqueue adds a request to the shortest of the queues in the flow's hand. It returns nil if that queue is full.
func (l *level) enqueue(f *flow, a *access.Attributes, now time.Time) (*waiter, *queue) {
	var hand [8]int
	var q *queue
	for _, i := range l.dealer.DealIntoHand(f.hash(a), hand[:]) {
		if q == nil || len(l.queues[i].waiters) < len(q.waiters) {
			q = l.queues[i]
		}
	}
	if len(q.waiters) >= l.queueLengthLimit {
		return nil, nil
	}
	l.recordDemand(now)
	if len(q.waiters) == 0 {
		l.nonEmpty = append(l.nonEmpty, q)
	}
	w := &waiter{
		holder: holder{flow: f, queue: q, request: a, arrived: now}, ready: make(chan struct{}), arrived: l.virtualTime,
	}
	q.waiters = append(q.waiters, w)
	q.dropCredit()
	l.queued++
	l.peak = max(l.peak, l.executing+l.queued)
	f.counts.queued++
	l.dispatch()
	return w, q
}

// hash returns the hash of the FlowSchema's name and the flow distinguisher of a request.
func (f *flow) hash(a *access.Attributes) uint64 {
	id := f.schema + "\x00"
	switch f.distinguisher {
	case flowcontrolv1.FlowDistinguisherMethodByUserType:
		id += a.User.GetName()
	case flowcontrolv1.FlowDistinguisherMethodByNamespaceType:
		id += a.Namespace
	}
	sum := sha256.Sum256([]byte(id))
	return binary.LittleEndian.Uint64(sum[:8])
}

// dispatch gives free seats to the next waiters.
func (l *level) dispatch() {
	for l.executing < l.limit && len(l.nonEmpty) > 0 {
		q := slices.MinFunc(l.nonEmpty, func(a, b *queue) int {
			switch { // MinFunc returns the first of equal queues
			case a.nextStart < b.nextStart:
				return -1
			case a.nextStart > b.nextStart:
				return 1
			}
			return 0
		})
		w := q.waiters[0]
		l.virtualTime = max(l.virtualTime, q.nextStart)
		q.nextStart += workEstimate
		w.dispatched = true
		l.removeWaiter(q, w)
		w.started = l.recordedAt
		w.index = l.execute(w.holder)
		q.executing++
		close(w.ready)
	}
}

// removeWaiter removes a waiter from its queue, and moves the queue to the end of nonEmpty.
func (l *level) removeWaiter(q *queue, w *waiter) {
	q.waiters = slices.DeleteFunc(q.waiters, func(x *waiter) bool { return x == w })
	l.nonEmpty = slices.DeleteFunc(l.nonEmpty, func(x *queue) bool { return x == q })
	if len(q.waiters) > 0 {
		l.nonEmpty = append(l.nonEmpty, q)
	}
	q.dropCredit()
	l.queued--
	w.flow.counts.queued--
}

// finishWait reports whether a waiter has a seat. If it has none, finishWait removes it from its queue.
func (l *level) finishWait(w *waiter, s *Seat, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.index = w.index
	if !w.dispatched {
		l.recordDemand(now)
		l.removeWaiter(s.queue, w)
		l.rejected++
		l.canceled++
	}
	return w.dispatched
}

func (l *level) release(s *Seat, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recordDemand(now)
	l.executing--
	if s.flow.counts != nil {
		s.flow.counts.executing--
	}
	l.running[s.index] = holder{}
	l.unused = append(l.unused, s.index)
	if q := s.queue; q != nil {
		q.executing--
		q.nextStart += now.Sub(s.taken).Seconds() - workEstimate
		q.dropCredit()
	}
	l.dispatch()
}
