// Package compute limits the number of expensive requests that use a processor at the same time. Inexpensive
// requests then get a processor soon, even if a client sends many expensive ones. The limit is needed because Go
// has no priorities. A goroutine that becomes runnable waits for all goroutines ahead of it in the run queue, and
// each of them runs for up to 10 ms.
package compute

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
)

// ErrTooMany is returned for a waiting request that the memory budget has rejected.
var ErrTooMany = errors.New("too many expensive requests wait")

// Slots is a semaphore for computing requests. Each request occupies one slot. Slots are granted to the waiting
// users round-robin, so a user with many requests delays another user by only one of them. Slots is safe for
// concurrent use.
type Slots struct {
	budget *Budget // memory of the waiting requests

	mu      sync.Mutex
	free    int
	waiting []*queue // one queue per waiting user, in round-robin order
}

// queue holds the waiting requests of one user, oldest first.
type queue struct {
	user    string
	waiters []*waiter
}

// waiter is a waiting request.
type waiter struct {
	done chan struct{} // closed when the request gets a slot or an error
	err  error
}

// NewSlots returns n slots. The memory of the requests that wait for them is reserved in budget.
func NewSlots(n int, budget *Budget) *Slots { return &Slots{free: n, budget: budget} }

// For returns the Slot of one request of user. The Slot is not acquired yet.
func (s *Slots) For(user string) *Slot { return &Slot{slots: s, user: user} }

func (s *Slots) tryAcquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free == 0 {
		return false
	}
	s.free--
	return true
}

// acquire blocks until it gets a slot. It returns the error of ctx if ctx ends first, and ErrTooMany if the budget
// rejects the request. A request without memory is never rejected.
func (s *Slots) acquire(ctx context.Context, user string, memory int64) error {
	w := &waiter{done: make(chan struct{})}
	if !s.enqueue(user, w) {
		return nil
	}
	if memory > 0 {
		reservation := s.budget.Reserve(user, func() { s.reject(w) })
		reservation.Resize(memory)
		defer reservation.Release()
	}
	select {
	case <-w.done:
		// Without Gosched, Go would run this goroutine next, before goroutines that became runnable earlier.
		runtime.Gosched()
		return w.err
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.remove(w) && w.err == nil {
		s.next() // the request got its slot after ctx had ended
	}
	return ctx.Err()
}

// enqueue adds w to the queue of its user and returns true. If a slot is free, enqueue acquires that slot instead
// and returns false.
func (s *Slots) enqueue(user string, w *waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free > 0 {
		s.free--
		return false
	}
	i := slices.IndexFunc(s.waiting, func(q *queue) bool { return q.user == user })
	if i < 0 {
		i = len(s.waiting)
		s.waiting = append(s.waiting, &queue{user: user})
	}
	s.waiting[i].waiters = append(s.waiting[i].waiters, w)
	return true
}

// reject fails a request, unless the request already has a slot.
func (s *Slots) reject(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remove(w) {
		w.err = ErrTooMany
		close(w.done)
	}
}

// remove deletes w from the queue of its user. It returns false if w is no longer waiting.
func (s *Slots) remove(w *waiter) bool {
	for i, q := range s.waiting {
		j := slices.Index(q.waiters, w)
		if j < 0 {
			continue
		}
		if q.waiters = slices.Delete(q.waiters, j, j+1); len(q.waiters) == 0 {
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

// next passes the released slot to the oldest request of the next user.
func (s *Slots) next() {
	if len(s.waiting) == 0 {
		s.free++
		return
	}
	q := s.waiting[0]
	w := q.waiters[0]
	s.remove(w)
	if len(q.waiters) > 0 { // the user moves to the end of the round-robin order
		s.waiting = append(slices.Delete(s.waiting, 0, 1), q)
	}
	close(w.done)
}
