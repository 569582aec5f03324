package embedded

import (
	"slices"
	"sync"
)

// queue holds the commits that wait for the committer.
type queue struct {
	mu      sync.Mutex
	waiting []*request
	closed  bool
	ready   chan struct{} // has room for one: something waits, or the queue is closed
}

func (q *queue) init() { q.ready = make(chan struct{}, 1) }

// add queues requests and says whether the queue is open.
func (q *queue) add(rs ...*request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.waiting = append(q.waiting, rs...)
	poke(q.ready)
	return true
}

// withdraw takes r back, unless the committer has it. Nothing of r is kept: while the log stands still, others follow.
func (q *queue) withdraw(r *request) bool {
	if !r.taken.CompareAndSwap(false, true) {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(other *request) bool { return other == r })
	return true
}

// groupRequests and groupBytes bound what is written at once, so that a flood
// neither builds one huge batch nor makes the first in it wait for the last.
const (
	groupRequests = 1024
	groupBytes    = 4 << 20
)

// take fills group with what waits, in order, and says whether more may come.
func (q *queue) take(group []*request) (_ []*request, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, bytes := 0, 0
	for n < len(q.waiting) && len(group) < groupRequests && bytes < groupBytes {
		r := q.waiting[n]
		n++
		if !r.taken.CompareAndSwap(false, true) {
			continue // withdrawn
		}
		for i := range r.writes {
			bytes += len(r.writes[i].Value)
		}
		group = append(group, r)
	}
	left := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[left:])
	q.waiting = q.waiting[:left]
	if left > 0 {
		poke(q.ready)
	}
	return group, !q.closed || left > 0
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	poke(q.ready)
}

// poke makes sure that c, which has room for one, holds something.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
