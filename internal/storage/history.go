package storage

import (
	"context"
	"sort"
	"sync"
	"sync/atomic"
)

// history holds the published state and the recent events in memory. One goroutine at a time
// publishes. Readers load state without a lock.
type history struct {
	state  atomic.Pointer[state]
	oldest atomic.Int64 // the oldest revision that may be read

	maxRecentBytes int64
	cache          snapshotCache // states read by readAt
	reading        chan struct{} // semaphore: readAt reads one state at a time

	recentBytes atomic.Int64 // cost of state.recent

	// Used only by the publisher.
	recentDropped      droppedCount
	checkpointsDropped droppedCount
	sinceCheckpoint    int // events since the last checkpoint
}

// state is the head and the recent history as of one publication. It is immutable.
type state struct {
	head *Snapshot
	// recent holds all events after base, in order. Revisions may have gaps, and events may share a revision.
	recent []*Event
	base   int64
	// checkpoints holds snapshots at some of the revisions in recent, oldest first.
	checkpoints []*Snapshot
}

// since returns the recent events after revision, which must not be less than base.
func (st *state) since(revision int64) []*Event {
	// A linear search from the end: callers read all returned events anyway.
	first := len(st.recent)
	for first > 0 && st.recent[first-1].Revision > revision {
		first--
	}
	return st.recent[first:]
}

// checkpointInterval is the number of events between two checkpoints. It is a compromise: a read undoes at most
// about this many events, and each checkpoint keeps one tree in memory.
const checkpointInterval = 64

func (h *history) init(head *Snapshot, oldest, bound int64) {
	h.maxRecentBytes, h.reading = bound, make(chan struct{}, 1)
	h.reset(head, oldest)
}

// reset drops everything except head.
func (h *history) reset(head *Snapshot, oldest int64) {
	h.oldest.Store(oldest)
	h.recentBytes.Store(0)
	h.recentDropped, h.checkpointsDropped, h.sinceCheckpoint = 0, 0, 0
	h.cache.clear()
	h.state.Store(&state{head: head, base: head.revision})
}

// check returns an error if the state at revision is compacted or in the future.
func (h *history) check(revision int64) error {
	if oldest := h.oldest.Load(); revision < oldest {
		return &CompactedError{Requested: revision, Oldest: oldest}
	}
	if current := h.state.Load().head.revision; revision > current {
		return &FutureError{Requested: revision, Current: current}
	}
	return nil
}

// publish makes a group of events visible. Events after revision keep must stay in memory.
func (h *history) publish(head *Snapshot, events []*Event, keep int64) {
	old := h.state.Load()
	next := &state{head: head, recent: append(old.recent, events...), base: old.base, checkpoints: old.checkpoints}
	for _, e := range events {
		h.recentBytes.Add(e.HistoryCost())
	}
	if h.sinceCheckpoint += len(events); len(next.checkpoints) == 0 || h.sinceCheckpoint >= checkpointInterval {
		next.checkpoints = append(next.checkpoints, head)
		h.sinceCheckpoint = 0
	}
	h.trim(next, keep)
	h.state.Store(next)
}

// trimPublished trims the history as publish does, but without new events. Only the publisher may call it.
func (h *history) trimPublished(keep int64) {
	next := *h.state.Load()
	n := len(next.recent)
	if h.trim(&next, keep); len(next.recent) < n {
		h.state.Store(&next)
	}
}

// trim drops recent events that exceed the size limit or precede the oldest revision. It may drop only some
// of the events of one revision. The HistoryReader then supplies the whole revision.
func (h *history) trim(st *state, keep int64) {
	n, oldest := 0, h.oldest.Load()
	for n < len(st.recent) {
		e := st.recent[n]
		if e.Revision > keep || h.recentBytes.Load() <= h.maxRecentBytes && e.Revision > oldest {
			break
		}
		st.base = e.Revision
		h.recentBytes.Add(-e.HistoryCost())
		n++
	}
	if n == 0 {
		return
	}
	st.recent = dropFront(st.recent, n, &h.recentDropped)
	first := sort.Search(len(st.checkpoints), func(i int) bool { return st.checkpoints[i].revision >= st.base })
	st.checkpoints = dropFront(st.checkpoints, first, &h.checkpointsDropped)
}

// droppedCount is the number of elements that were dropped from the front of a slice and are still in its array.
type droppedCount int

// dropFront drops the first n elements of s. Readers may hold s, so nothing is overwritten. The remaining
// elements move to a new array once the old one holds more dropped than remaining elements.
func dropFront[T any](s []T, n int, dropped *droppedCount) []T {
	s = s[n:]
	if *dropped += droppedCount(n); int(*dropped) > len(s) {
		*dropped = 0
		return append([]T(nil), s...)
	}
	return s
}

// at returns the state at a revision.
func (h *history) at(ctx context.Context, reader HistoryReader, revision int64) (*Snapshot, error) {
	st := h.state.Load()
	if revision == st.head.revision {
		return st.head, nil
	}
	if err := h.check(revision); err != nil {
		return nil, err
	}
	if revision > st.head.revision { // the head has changed before the call of check
		st = h.state.Load()
	}
	if revision >= st.base {
		return st.undo(revision), nil
	}
	return h.readAt(ctx, reader, st, revision)
}

// undo returns the state at a revision by undoing recent events. revision must not be less than base.
func (st *state) undo(revision int64) *Snapshot {
	from := st.head
	i := sort.Search(len(st.checkpoints), func(i int) bool { return st.checkpoints[i].revision >= revision })
	if i < len(st.checkpoints) {
		from = st.checkpoints[i]
	}
	if from.revision == revision {
		return from
	}
	events := st.since(revision)
	events = events[:len(events)-len(st.since(from.revision))]
	edit := from.tree.Edit()
	for i := len(events) - 1; i >= 0; i-- {
		if p := events[i].Previous; p != nil {
			edit.Put(p.Key, p.Modified, p)
		} else {
			edit.Delete(events[i].Key)
		}
	}
	return &Snapshot{tree: edit.Tree(), revision: revision}
}

// readAt returns the state at a revision before base, which it reads from the log. Such a read may need much time and
// memory. Callers wait for each other, so those of the same revision share a read.
func (h *history) readAt(ctx context.Context, reader HistoryReader, st *state, revision int64) (*Snapshot, error) {
	if s := h.cache.get(revision); s != nil {
		return s, nil
	}
	select {
	case h.reading <- struct{}{}:
		defer func() { <-h.reading }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if s := h.cache.get(revision); s != nil { // another caller has read it meanwhile
		return s, nil
	}
	base := st.undo(st.base)
	edit := base.tree.Edit()
	err := reader.ReadAt(ctx, revision, base, func(key string, r *Record) {
		now, _ := base.tree.Get(key)
		switch {
		case r == nil:
			edit.Delete(key)
		case modified(now) != r.Modified:
			edit.Put(key, r.Modified, r)
		}
	})
	if err != nil {
		return nil, readError(err)
	}
	s := &Snapshot{tree: edit.Tree(), revision: revision}
	h.cache.put(s)
	return s, nil
}

// snapshotCache holds a few old states, so that a paginated list does not read the log for every page.
type snapshotCache struct {
	mu      sync.Mutex
	entries [4]*Snapshot
	next    int
}

func (w *snapshotCache) get(revision int64) *Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.entries {
		if s != nil && s.revision == revision {
			return s
		}
	}
	return nil
}

func (w *snapshotCache) put(s *Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.entries[w.next] = s
	w.next = (w.next + 1) % len(w.entries)
}

func (w *snapshotCache) clear() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.entries = [4]*Snapshot{}
}
