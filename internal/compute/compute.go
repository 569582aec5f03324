// Package compute bounds the number of expensive requests that use a processor at the same time. Inexpensive requests then find a
// processor soon, however many expensive ones a client sends: Go has no priorities, and a goroutine that becomes runnable waits for
// all that are before it in the queue, each of which runs for up to 10 ms.
package compute

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
)

// ErrTooMany is returned to a request that would wait for a slot behind too many others.
var ErrTooMany = errors.New("too many expensive requests wait")

// Slots is a number of slots, each for one request that computes. Users who wait take turns: a user with many requests delays another
// user by one of them. It is safe for concurrent use.
type Slots struct {
	room *Budget // of the requests that wait

	mu      sync.Mutex
	free    int
	waiting []*queue // of the users who wait, in the order of their turns
}

// queue holds the requests of one user that wait for a slot, the oldest first.
type queue struct {
	user    string
	waiters []*waiter
}

// waiter is a request that waits.
type waiter struct {
	done chan struct{} // closed when the request gets a slot or an error
	err  error
}

// NewSlots returns n slots. The requests that wait for them are in a Room.
func NewSlots(n int, room *Budget) *Slots { return &Slots{free: n, room: room} }

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
// much memory. A request without memory is never refused.
func (s *Slots) acquire(ctx context.Context, user string, memory int64) error {
	w := &waiter{done: make(chan struct{})}
	if !s.enqueue(user, w) {
		return nil
	}
	if memory > 0 {
		stay := s.room.Reserve(user, func() { s.refuse(w) })
		stay.Resize(memory)
		defer stay.Release()
	}
	select {
	case <-w.done:
		// Otherwise Go would run this goroutine next, before those that became runnable earlier.
		runtime.Gosched()
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

// enqueue adds a request to the queue of its user. It returns false if a slot is free, which the request then has.
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

// refuse fails a request, unless it has a slot already.
func (s *Slots) refuse(w *waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.remove(w) {
		w.err = ErrTooMany
		close(w.done)
	}
}

// remove takes a request out of its queue. It returns false if the request does not wait any more.
func (s *Slots) remove(w *waiter) bool {
	for i, q := range s.waiting {
		at := slices.Index(q.waiters, w)
		if at < 0 {
			continue
		}
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
