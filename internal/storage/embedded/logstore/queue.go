package logstore

import (
	"slices"
	"sync"
)

// queue holds the requests that wait for the committer.
type queue struct {
	mu      sync.Mutex
	waiting []*request
	closed  bool
	ready   chan struct{} // buffer of one: a request is waiting, or the queue is closed
}

func (q *queue) init() { q.ready = make(chan struct{}, 1) }

// add appends requests. It reports whether the queue is still open.
func (q *queue) add(rs ...*request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.waiting = append(q.waiting, rs...)
	signal(q.ready)
	return true
}

// withdraw removes r from the queue. It returns false if the committer has already taken r. While the log is
// blocked and more requests arrive, removal frees the memory of r.
func (q *queue) withdraw(r *request) bool {
	if !r.taken.CompareAndSwap(false, true) {
		return false
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(other *request) bool { return other == r })
	return true
}

// groupRequests and groupBytes limit one group. A large number of requests then neither makes the batch huge nor
// delays the first request in it.
const (
	groupRequests = 1024
	groupBytes    = 4 << 20
)

// take appends waiting requests to group, in order, and reports whether more may follow.
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
		signal(q.ready)
	}
	return group, !q.closed || left > 0
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	signal(q.ready)
}

// signal sends to c, a channel with a buffer of one, unless the buffer is full.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
