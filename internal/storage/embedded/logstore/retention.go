package logstore

import (
	"sync"
	"time"
)

// retention computes the revision up to which the history is compacted, by its age and size.
type retention struct {
	mu      sync.Mutex
	total   int64 // cost of all history ever written, as counted by Event.HistoryCost
	dropped int64 // cost of the compacted part of total
	samples []sample
}

// sample records the end of the history at one time.
type sample struct {
	revision int64
	total    int64
	at       time.Time
}

// add counts the cost of a published group. It takes a sample for each sixteenth of limit.
func (r *retention) add(revision, cost int64, now time.Time, limit int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.total += cost
	if n := len(r.samples); n == 0 || r.total-r.samples[n-1].total >= limit/16 {
		r.samples = append(r.samples, sample{revision, r.total, now})
	}
}

// note takes a sample if the head has moved and the last sample is at least as old as the given interval.
func (r *retention) note(revision int64, now time.Time, every time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.samples); n > 0 && (now.Sub(r.samples[n-1].at) < every || r.samples[n-1].revision >= revision) {
		return
	}
	r.samples = append(r.samples, sample{revision, r.total, now})
}

// excess reports whether the history is larger than limit.
func (r *retention) excess(limit int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.total-r.dropped > limit
}

// target returns the revision to compact to, or 0. All history that ended before the given time is compacted. If
// the history is larger than limit, more is compacted, until three quarters of limit remain.
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

// compacted drops the samples up to revision.
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
