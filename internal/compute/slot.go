package compute

import (
	"context"
	"sync"
	"time"
)

// Slot is what one request needs to compute. The methods of a nil Slot, which an inexpensive request has, do nothing. TryAcquire, Acquire
// and Release are called by the goroutine of the request.
type Slot struct {
	of   *Slots
	user string

	mu       sync.Mutex
	acquired bool // and not yet released
	held     bool // false in a pause
	pauses   int  // calls of Pause without their resume
}

// TryAcquire acquires the slot if one is free, and reports whether the request has one.
func (s *Slot) TryAcquire() bool {
	if s.acquired {
		return true
	}
	free := s.of.tryAcquire()
	if free {
		s.set()
	}
	return free
}

// Acquire blocks until the request, which has a number of bytes of memory, has a slot. It returns the error of ctx if that ends first, and
// ErrTooMany if the requests that wait have too much memory.
func (s *Slot) Acquire(ctx context.Context, memory int64) error {
	if s.acquired {
		return nil
	}
	err := s.of.acquire(ctx, s.user, memory)
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

// Release gives the slot back. It does nothing if the slot is not acquired.
func (s *Slot) Release() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acquired = false
	s.giveBack()
}

func (s *Slot) giveBack() {
	if s.held {
		s.held = false
		s.of.release()
	}
}

// Pause gives the slot back while the request waits, and returns a function that blocks until the request has a slot again or ctx
// ends. Goroutines of one request may pause at the same time: the slot is taken again after the last of them.
func (s *Slot) Pause(ctx context.Context) (resume func()) {
	if s == nil {
		return func() {}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pauses++
	s.giveBack()
	return func() { s.resume(ctx) }
}

// PauseAfter calls Pause after a delay, unless resume is called before.
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
	if !last || s.of.acquire(ctx, s.user, 0) != nil { // a request that has done a part of its work is not refused
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held || !s.acquired || s.pauses > 0 { // by another goroutine in the meantime
		s.of.release()
		return
	}
	s.held = true
}

type key struct{}

// Context returns a context with the slot, for Pause.
func (s *Slot) Context(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	return context.WithValue(ctx, key{}, s)
}

// Pause pauses the slot in ctx, if there is one, while the caller waits for another server. The caller calls resume after the wait.
func Pause(ctx context.Context) (resume func()) {
	s, _ := ctx.Value(key{}).(*Slot)
	return s.Pause(ctx)
}
