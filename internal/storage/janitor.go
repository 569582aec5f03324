package storage

import (
	"container/heap"
	"errors"
	"sync"
	"time"
)

// janitor deletes what has expired and compacts history, until Close.
func (s *Store) janitor() {
	tick := s.options.CompactAfter / 10
	s.note(tick)
	for {
		select {
		case <-s.stop:
			return
		case <-s.options.After(s.expiry.wait(s.options.Now(), tick)):
		case <-s.expiry.ready:
		case <-s.options.Tight:
			s.note(0)
			s.retire(min(shortHistory, s.options.CompactAfter))
			continue
		}
		s.sweep()
		s.note(tick)
		s.retire(s.options.CompactAfter)
		poke(s.queue.ready) // the committer forgets what it holds of what has gone
	}
}

// note remembers when the head was where it is.
func (s *Store) note(every time.Duration) {
	s.history.retention.note(s.Head().revision, s.options.Now(), every)
}

// shortHistory is how much is kept when room is scarce: enough for a client to go from one
// page of a list to the next, and from a list to its watch.
const shortHistory = 10 * time.Second

// retire compacts what is older than age or too much.
func (s *Store) retire(age time.Duration) {
	target := s.history.retention.target(s.options.Now().Add(-age), s.options.HistoryBytes)
	if target == 0 || target < s.history.oldest.Load() { // one that failed is tried again
		return
	}
	if err := s.compact(target); err != nil && !errors.Is(err, ErrClosed) && !errors.Is(err, ErrUnavailable) {
		s.options.Logger.Error("history could not be compacted", "revision", target, "err", err)
	}
}

// compact forgets history before revision, which exists.
func (s *Store) compact(revision int64) error {
	h := &s.history
	h.maintenance.Lock()
	defer h.maintenance.Unlock()
	if h.gone {
		return ErrClosed
	}
	if revision < h.oldest.Load() {
		return nil
	}
	h.oldest.Store(revision) // first, so that nobody starts on what is about to go
	h.rewound.drop()
	if err := s.log.Compact(revision); err != nil {
		return err
	}
	h.retention.compacted(revision)
	poke(s.queue.ready) // the committer forgets what it holds of it
	return nil
}

// retention decides how far to compact.
type retention struct {
	mu      sync.Mutex
	total   int64 // bytes of history ever, as counted by Event.HistoryCost
	dropped int64 // how much of total has been compacted
	samples []sample
}

// sample says when the history ended where.
type sample struct {
	revision int64
	total    int64
	at       time.Time
}

// add counts what a published group costs, and samples when a sixteenth of limit
// came together.
func (r *retention) add(revision, cost int64, now time.Time, limit int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total += cost
	if n := len(r.samples); n == 0 || r.total-r.samples[n-1].total >= limit/16 {
		r.samples = append(r.samples, sample{revision, r.total, now})
	}
}

// note takes a sample if the last one is older than every.
func (r *retention) note(revision int64, now time.Time, every time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.samples); n > 0 && (now.Sub(r.samples[n-1].at) < every || r.samples[n-1].revision >= revision) {
		return
	}
	r.samples = append(r.samples, sample{revision, r.total, now})
}

// excess says whether there is more history than limit.
func (r *retention) excess(limit int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total-r.dropped > limit
}

// target returns the revision to compact to: all that ended before the given
// time, and as much as brings the rest to three quarters of limit if it is above.
func (r *retention) target(before time.Time, limit int64) (revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	over := r.total-r.dropped > limit
	for _, s := range r.samples {
		if s.at.After(before) && (!over || r.total-s.total < limit*3/4) {
			break
		}
		revision = s.revision
	}
	return revision
}

// compacted forgets the samples up to revision.
func (r *retention) compacted(revision int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for n < len(r.samples) && r.samples[n].revision <= revision {
		r.dropped = r.samples[n].total
		n++
	}
	r.samples = append(r.samples[:0], r.samples[n:]...)
}

// sweepAtOnce is how many expired keys are deleted in one round.
const sweepAtOnce = 256

// sweepAgain is when that is tried again if the log cannot write.
const sweepAgain = 5 * time.Second

// sweep deletes the keys that have expired, each by a commit of its own, so that
// one that was just renewed does not hold up the others.
func (s *Store) sweep() {
	for {
		due := s.expiry.due(s.options.Now(), sweepAtOnce)
		if len(due) == 0 {
			return
		}
		requests := make([]*request, 0, len(due))
		for _, d := range due {
			if !s.present(d) {
				continue
			}
			requests = append(requests, &request{
				writes: []Write{{Key: d.key, Expected: d.revision}},
				done:   make(chan struct{}),
			})
		}
		if !s.queue.add(requests...) {
			return
		}
		failed := false
		for _, r := range requests {
			<-r.done
			conflict := (*ConflictError)(nil)
			failed = failed || r.err != nil && !errors.As(r.err, &conflict)
		}
		if failed { // the log cannot write, which it has logged
			s.postpone(due)
			return
		}
	}
}

// present says whether what expires is still there.
func (s *Store) present(d deadline) bool {
	r := s.Head().Get(d.key)
	return r != nil && r.Modified == d.revision
}

// postpone has what is still there of due deleted later.
func (s *Store) postpone(due []deadline) {
	later := s.options.Now().Add(sweepAgain)
	for _, d := range due {
		if s.present(d) {
			s.expiry.push(deadline{later, d.key, d.revision})
		}
	}
}

// expiry knows which keys expire when. What has been overwritten since stays in
// it until its time has come.
type expiry struct {
	mu    sync.Mutex
	heap  deadlines
	ready chan struct{} // has room for one: the janitor has something to do
}

type deadline struct {
	at       time.Time
	key      string
	revision int64
}

func (x *expiry) init() { x.ready = make(chan struct{}, 1) }

func (x *expiry) poke() { poke(x.ready) }

// add notes r if it expires.
func (x *expiry) add(r *Record) {
	if r.Expires.IsZero() {
		return
	}
	if x.push(deadline{r.Expires, r.Key, r.Modified}) {
		x.poke()
	}
}

// push notes d and says whether nothing is due before.
func (x *expiry) push(d deadline) (first bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	heap.Push(&x.heap, d)
	return x.heap[0] == d
}

// wait is how long nothing is due, at most limit.
func (x *expiry) wait(now time.Time, limit time.Duration) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.heap) == 0 {
		return limit
	}
	return max(0, min(limit, x.heap[0].at.Sub(now)))
}

// due takes out up to n of those whose time has come.
func (x *expiry) due(now time.Time, n int) []deadline {
	x.mu.Lock()
	defer x.mu.Unlock()
	var due []deadline
	for len(due) < n && len(x.heap) > 0 && !x.heap[0].at.After(now) {
		due = append(due, heap.Pop(&x.heap).(deadline))
	}
	return due
}

// deadlines is a heap, the earliest first.
type deadlines []deadline

func (d deadlines) Len() int           { return len(d) }
func (d deadlines) Less(i, j int) bool { return d[i].at.Before(d[j].at) }
func (d deadlines) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *deadlines) Push(x any)        { *d = append(*d, x.(deadline)) }
func (d *deadlines) Pop() any {
	last := len(*d) - 1
	x := (*d)[last]
	(*d)[last] = deadline{}
	*d = (*d)[:last]
	return x
}
