package storage

import (
	"sync"
	"sync/atomic"
)

// Follower keeps an index derived from a store at the store's head. After a write has returned, the next
// Refresh includes that write. A Follower runs no goroutine: work happens only in Refresh, which costs one
// pointer comparison if nothing has changed.
type Follower struct {
	Head func() *Snapshot
	// Advance updates the index from one state to another. The first call starts from an empty state. Calls
	// do not overlap. The new state may be older than the previous one after a store has been restored.
	Advance func(old, current *Snapshot)

	mu   sync.Mutex
	seen atomic.Pointer[Snapshot] // the state of the index; nil before the first Refresh
}

// Refresh updates the index to the head.
func (f *Follower) Refresh() {
	if f.Head() == f.seen.Load() {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	old, current := f.seen.Load(), f.Head()
	if current == old {
		return // another goroutine has refreshed the index meanwhile
	}
	if old == nil {
		old = &Snapshot{}
	}
	f.Advance(old, current)
	f.seen.Store(current)
}
