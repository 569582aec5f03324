package storage

import "sync"

// waiters is the set of calls that wait for the head to reach a revision.
type waiters struct {
	mu      sync.Mutex
	waiting map[*waiter]struct{}
}

type waiter struct {
	revision int64
	reached  chan struct{} // closed when the revision is reached
}

func (w *waiters) add(revision int64) *waiter {
	n := &waiter{revision, make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = map[*waiter]struct{}{}
	}
	w.waiting[n] = struct{}{}
	return n
}

func (w *waiters) remove(n *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, n)
}

// notify releases all waiters whose revision is at most revision.
func (w *waiters) notify(revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := range w.waiting {
		if n.revision <= revision {
			close(n.reached)
			delete(w.waiting, n)
		}
	}
}
