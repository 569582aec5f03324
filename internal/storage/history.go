package storage

import (
	"context"
	"sort"
	"sync"
	"sync/atomic"
)

// history is the published state and the recent past in memory. One goroutine at a time
// publishes; everybody reads state without a lock.
type history struct {
	state  atomic.Pointer[state]
	oldest atomic.Int64 // the oldest revision that may be read

	bound          int64 // of recentBytes
	recentBytes    int64 // of state.recent; the publisher's
	recent, marked spare // likewise
	unmarked       int   // events since the last mark; likewise
	rewound        rewound
}

// state is one published moment. It is immutable.
type state struct {
	head *Snapshot
	// recent are all events after base, in order. Their revisions may have gaps, and several may share one.
	recent []*Event
	base   int64
	// marks are snapshots at some revisions since the first recent event, oldest first.
	marks []*Snapshot
}

// since returns the recent events after revision, which must not be below base.
func (st *state) since(revision int64) []*Event {
	first := len(st.recent) // what is asked for is looked at anyway, so that going back through it costs no more
	for first > 0 && st.recent[first-1].Revision > revision {
		first--
	}
	return st.recent[first:]
}

// markEvery is how many events lie between two marks: undoing that many is cheap,
// and so is keeping the nodes of every so manieth tree.
const markEvery = 64

func (h *history) init(head *Snapshot, oldest, bound int64) {
	h.bound = bound
	h.reset(head, oldest)
}

// reset forgets all but head.
func (h *history) reset(head *Snapshot, oldest int64) {
	h.oldest.Store(oldest)
	h.recentBytes, h.recent, h.marked, h.unmarked = 0, 0, 0, 0
	h.rewound.drop()
	h.state.Store(&state{head: head, base: head.revision})
}

// check says whether the state at revision may be read.
func (h *history) check(revision int64) error {
	if oldest := h.oldest.Load(); revision < oldest {
		return &CompactedError{Requested: revision, Oldest: oldest}
	}
	if current := h.state.Load().head.revision; revision > current {
		return &FutureError{Requested: revision, Current: current}
	}
	return nil
}

// publish makes a group of events visible. keep is a revision whose later events
// must stay in memory.
func (h *history) publish(head *Snapshot, events []*Event, keep int64) {
	old := h.state.Load()
	next := &state{head: head, recent: append(old.recent, events...), base: old.base, marks: old.marks}
	for _, e := range events {
		h.recentBytes += e.HistoryCost()
	}
	if h.unmarked += len(events); len(next.marks) == 0 || h.unmarked >= markEvery {
		next.marks = append(next.marks, head)
		h.unmarked = 0
	}
	h.trim(next, keep)
	h.state.Store(next)
}

// shrink forgets what publish would. The publisher calls it when there is nothing to publish.
func (h *history) shrink(keep int64) {
	next := *h.state.Load()
	n := len(next.recent)
	if h.trim(&next, keep); len(next.recent) < n {
		h.state.Store(&next)
	}
}

// trim forgets recent events that are too much or before the oldest revision. What is left of a revision that was begun with
// is the past's.
func (h *history) trim(st *state, keep int64) {
	n, oldest := 0, h.oldest.Load()
	for n < len(st.recent) {
		e := st.recent[n]
		if e.Revision > keep || h.recentBytes <= h.bound && e.Revision > oldest {
			break
		}
		st.base = e.Revision
		h.recentBytes -= e.HistoryCost()
		n++
	}
	if n == 0 {
		return
	}
	st.recent = forget(st.recent, n, &h.recent)
	first := sort.Search(len(st.marks), func(i int) bool { return st.marks[i].revision >= st.base })
	st.marks = forget(st.marks, first, &h.marked)
}

// spare is how many elements have been dropped from the front of an array that still holds them.
type spare int

// forget drops the first n of s. Readers may hold s, so nothing is overwritten: what is
// left moves to a new array once the old one holds more that was dropped.
func forget[T any](s []T, n int, dropped *spare) []T {
	s = s[n:]
	if *dropped += spare(n); int(*dropped) > len(s) {
		*dropped = 0
		return append([]T(nil), s...)
	}
	return s
}

// at returns the state at a revision.
func (h *history) at(ctx context.Context, past HistoryReader, revision int64) (*Snapshot, error) {
	st := h.state.Load()
	if revision == st.head.revision {
		return st.head, nil
	}
	if err := h.check(revision); err != nil {
		return nil, err
	}
	if revision > st.head.revision { // published between the two looks
		st = h.state.Load()
	}
	if revision >= st.base {
		return st.undo(revision), nil
	}
	return h.rewind(ctx, past, st, revision)
}

// undo returns the state at a revision that recent leads back to.
func (st *state) undo(revision int64) *Snapshot {
	from := st.head
	i := sort.Search(len(st.marks), func(i int) bool { return st.marks[i].revision >= revision })
	if i < len(st.marks) {
		from = st.marks[i]
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

// rewind returns the state at a revision older than recent.
func (h *history) rewind(ctx context.Context, past HistoryReader, st *state, revision int64) (*Snapshot, error) {
	if s := h.rewound.get(revision); s != nil {
		return s, nil
	}
	base := st.undo(st.base)
	edit := base.tree.Edit()
	err := past.ReadAt(ctx, revision, base, func(key string, r *Record) {
		now, _ := base.tree.Get(key)
		switch {
		case r == nil:
			edit.Delete(key)
		case modified(now) != r.Modified:
			edit.Put(key, r.Modified, r)
		}
	})
	if err != nil {
		return nil, reading(err)
	}
	s := &Snapshot{tree: edit.Tree(), revision: revision}
	h.rewound.put(s)
	return s, nil
}

// rewound keeps a few old states, for the pages of a list that takes its time.
type rewound struct {
	mu    sync.Mutex
	kept  [4]*Snapshot
	index int
}

func (w *rewound) get(revision int64) *Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.kept {
		if s != nil && s.revision == revision {
			return s
		}
	}
	return nil
}

func (w *rewound) put(s *Snapshot) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept[w.index] = s
	w.index = (w.index + 1) % len(w.kept)
}

func (w *rewound) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = [4]*Snapshot{}
}
