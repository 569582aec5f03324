package embedded

import (
	"sync"
	"time"
)

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
