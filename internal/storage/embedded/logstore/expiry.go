package logstore

import (
	"container/heap"
	"sync"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// expiry holds the deadlines of expiring keys. It keeps a deadline until this time has passed, even if the key has
// been overwritten.
type expiry struct {
	mu    sync.Mutex
	heap  deadlines
	ready chan struct{} // buffer of one: triggers the compactor
}

type deadline struct {
	at       time.Time
	key      string
	revision int64
}

func (x *expiry) init() { x.ready = make(chan struct{}, 1) }

func (x *expiry) trigger() { signal(x.ready) }

// add adds the deadline of r, if it has one.
func (x *expiry) add(r *storage.Record) {
	if r.Expires.IsZero() {
		return
	}
	if x.push(deadline{r.Expires, r.Key, r.Modified}) {
		x.trigger()
	}
}

// push adds d and reports whether it is now the earliest deadline.
func (x *expiry) push(d deadline) (first bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	heap.Push(&x.heap, d)
	return x.heap[0] == d
}

// wait returns the time until the earliest deadline, but at most limit.
func (x *expiry) wait(now time.Time, limit time.Duration) time.Duration {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.heap) == 0 {
		return limit
	}
	return max(0, min(limit, x.heap[0].at.Sub(now)))
}

// due removes and returns up to n deadlines that have passed.
func (x *expiry) due(now time.Time, n int) []deadline {
	x.mu.Lock()
	defer x.mu.Unlock()
	var due []deadline
	for len(due) < n && len(x.heap) > 0 && !x.heap[0].at.After(now) {
		due = append(due, heap.Pop(&x.heap).(deadline))
	}
	return due
}

// deadlines implements heap.Interface, the earliest deadline first.
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
