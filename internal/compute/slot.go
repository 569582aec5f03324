package compute

import (
	"context"
	"sync"
	"time"
)

// Slot is the permission of one request to compute. The methods of a nil Slot do nothing. Inexpensive requests have
// a nil Slot. Only the goroutine of the request calls TryAcquire, Acquire and Release.
type Slot struct {
	slots *Slots
	user  string

	mu       sync.Mutex
	acquired bool // and not yet released
	held     bool // false during a pause
	pauses   int  // calls of Pause whose resume function has not been called
}

// TryAcquire acquires the slot if one is free. It reports whether the request has a slot.
func (s *Slot) TryAcquire() bool {
	if s.acquired {
		return true
	}
	free := s.slots.tryAcquire()
	if free {
		s.set()
	}
	return free
}

// Acquire blocks until the request has a slot. memory is the size in bytes of the memory that the request uses
// while it waits. Acquire returns the error of ctx if ctx ends first, and ErrTooMany if the budget rejects the
// request.
func (s *Slot) Acquire(ctx context.Context, memory int64) error {
	if s.acquired {
		return nil
	}
	err := s.slots.acquire(ctx, s.user, memory)
	if err == nil {
		s.set()
	}
	return err
}

func (s *Slot) set() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acquired, s.held = true, true
}

// Release releases the slot. It does nothing if the slot is not acquired.
func (s *Slot) Release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acquired = false
	s.releaseHeld()
}

func (s *Slot) releaseHeld() {
	if s.held {
		s.held = false
		s.slots.release()
	}
}

// Pause releases the slot while the request waits. It returns a function that blocks until the request has a slot
// again or ctx ends. Goroutines of one request may pause at the same time. The last one to resume acquires the slot
// again.
func (s *Slot) Pause(ctx context.Context) (resume func()) {
	if s == nil {
		return func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pauses++
	s.releaseHeld()
	return func() { s.resume(ctx) }
}

// PauseAfter calls Pause after d, unless resume is called earlier.
func (s *Slot) PauseAfter(ctx context.Context, d time.Duration) (resume func()) {
	if s == nil {
		return func() {}
	}
	paused := make(chan func(), 1)
	t := time.AfterFunc(d, func() { paused <- s.Pause(ctx) })
	return func() {
		if !t.Stop() {
			(<-paused)()
		}
	}
}

func (s *Slot) resume(ctx context.Context) {
	s.mu.Lock()
	s.pauses--
	last := s.pauses == 0 && s.acquired
	s.mu.Unlock()
	// With a memory of 0, the budget never rejects the request, which has already done part of its work.
	if !last || s.slots.acquire(ctx, s.user, 0) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held || !s.acquired || s.pauses > 0 { // another goroutine resumed, released or paused in the meantime
		s.slots.release()
		return
	}
	s.held = true
}

type key struct{}

// Context returns a copy of ctx that carries the slot for the function Pause.
func (s *Slot) Context(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	return context.WithValue(ctx, key{}, s)
}

// Pause pauses the slot in ctx, if any, while the caller waits for another server. The caller calls resume after
// the wait.
func Pause(ctx context.Context) (resume func()) {
	s, _ := ctx.Value(key{}).(*Slot)
	return s.Pause(ctx)
}
