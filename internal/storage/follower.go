package storage

import (
	"sync"
	"sync/atomic"
)

// Follower keeps what is derived from a store at its head: what a write that was answered has left is known at the next question.
// Nothing runs beside the questions; where nothing has changed, one costs a comparison.
type Follower struct {
	Head func() *Snapshot
	// Advance brings what is derived from one state, at first an empty one, to another, one call at a time. The second may be the
	// older, where a store has been put back.
	Advance func(was, is *Snapshot)

	mu   sync.Mutex
	seen atomic.Pointer[Snapshot] // nil: none
}

// Refresh returns once what is derived is that of the head.
func (f *Follower) Refresh() {
	if f.Head() == f.seen.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	was, is := f.seen.Load(), f.Head()
	if is == was {
		return // another one was quicker
	}
	if was == nil {
		was = &Snapshot{}
	}
	f.Advance(was, is)
	f.seen.Store(is)
}
