// Package compute bounds the number of expensive requests that use a processor at the same time. Inexpensive requests then find a
// processor soon, however many expensive ones a client sends: Go has no priorities, and a goroutine that becomes runnable waits for
// all that are before it in the queue, each of which runs for up to 10 ms.
package compute

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
)

// ErrTooMany is returned to a request that would wait for a slot behind too many others.
var ErrTooMany = errors.New("too many expensive requests wait")

// Slots is a number of slots, each for one request that computes. Users who wait take turns: a user with many requests delays another
// user by one of them. The memory of the requests that wait is bounded: at the bound, the newest request of the user with the most memory
// fails. It is safe for concurrent use.
type Slots struct {
	mu      sync.Mutex
	free    int
	most    int64    // memory of the requests that may wait, in bytes
	memory  int64    // of the requests that wait
	waiting []*queue // of the users who wait, in the order of their turns
}

// queue holds the requests of one user that wait for a slot, the oldest first.
type queue struct {
	user    string
	memory  int64
	waiters []*waiter
}

// waiter is a request that waits.
type waiter struct {
	memory int64
	done   chan struct{} // closed when the request gets a slot or an error
	err    error
}

// NewSlots returns n slots, for which requests with up to most bytes of memory wait.
func NewSlots(n int, most int64) *Slots { return &Slots{free: n, most: most} }

// For returns the Slot of one request of a user. It is not acquired yet.
func (s *Slots) For(user string) *Slot { return &Slot{of: s, user: user} }

func (s *Slots) tryAcquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free == 0 {
		return false
	}
	s.free--
	return true
}

// acquire blocks until there is a slot. It returns the error of ctx if that ends first, and ErrTooMany if the requests that wait have too
// much memory. A request with no memory is never refused.
func (s *Slots) acquire(ctx context.Context, user string, memory int64) error {
	s.mu.Lock()
	if s.free > 0 {
		s.free--
		s.mu.Unlock()
		return nil
	}
	w := &waiter{memory: memory, done: make(chan struct{})}
	s.add(user, w)
	for s.memory > s.most {
		s.refuse()
	}
	s.mu.Unlock()
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.remove(w) && w.err == nil {
		s.next() // the slot came too late
	}
	return ctx.Err()
}

func (s *Slots) add(user string, w *waiter) {
	s.memory += w.memory
	i := slices.IndexFunc(s.waiting, func(q *queue) bool { return q.user == user })
	if i < 0 {
		i = len(s.waiting)
		s.waiting = append(s.waiting, &queue{user: user})
	}
	q := s.waiting[i]
	q.memory += w.memory
	q.waiters = append(q.waiters, w)
}

// refuse fails the newest request with memory of the user whose requests have the most memory.
func (s *Slots) refuse() {
	largest := slices.MaxFunc(s.waiting, func(a, b *queue) int { return cmp.Compare(a.memory, b.memory) })
	i := len(largest.waiters) - 1
	for largest.waiters[i].memory == 0 {
		i--
	}
	w := largest.waiters[i]
	w.err = ErrTooMany
	s.remove(w)
	close(w.done)
}

// remove takes a request out of its queue. It returns false if the request does not wait any more.
func (s *Slots) remove(w *waiter) bool {
	for i, q := range s.waiting {
		at := slices.Index(q.waiters, w)
		if at < 0 {
			continue
		}
		s.memory -= w.memory
		q.memory -= w.memory
		if q.waiters = slices.Delete(q.waiters, at, at+1); len(q.waiters) == 0 {
			s.waiting = slices.Delete(s.waiting, i, i+1)
		}
		return true
	}
	return false
}

func (s *Slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next()
}

// next passes a slot on to the oldest request of the user whose turn it is.
func (s *Slots) next() {
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	q := s.waiting[0]
	w := q.waiters[0]
	s.remove(w)
	if len(q.waiters) > 0 { // the user's next turn comes after that of all others
		s.waiting = append(slices.Delete(s.waiting, 0, 1), q)
	}
	close(w.done)
}
