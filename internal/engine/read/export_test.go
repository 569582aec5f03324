package read

import (
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Constants for tests in package read_test.
const (
	IndexMinObjects  = indexMinObjects
	IndexIdleTimeout = indexIdleTimeout
)

// AppendEvent calls appendEvent.
func (w *Watch) AppendEvent(buf []WatchEvent, ev *storage.Event) ([]WatchEvent, error) {
	return w.appendEvent(buf, ev)
}

func (r *Reader) mustQuery(t testing.TB, at verb.Target, o ListOptions) *query {
	t.Helper()
	q, err := r.newQuery(at, &o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// UsesIndex reports whether a list would use an index.
func (r *Reader) UsesIndex(t testing.TB, at verb.Target, o ListOptions) bool {
	ix, _, _ := r.mustQuery(t, at, o).bestIndex(r.Store.Head())
	return ix != nil
}

// Scan returns a function that evaluates selectors on all objects of the head and returns the number of matches.
func (r *Reader) Scan(t testing.TB, at verb.Target, o ListOptions) func() int {
	q := r.mustQuery(t, at, o)
	return func() (n int) {
		for rec := range r.Store.Head().Walk(q.prefix, "") {
			if q.matches(rec) {
				n++
			}
		}
		return n
	}
}

// BuildIndex builds an index of the first selectable field and returns its number of entries for a value.
func (r *Reader) BuildIndex(t testing.TB, at verb.Target, o ListOptions, value string) int {
	ix := &fieldIndex{}
	return ix.atSnapshot(r.mustQuery(t, at, o), r.Store.Head()).keys.Count(bucket(hashValue(value)), "")
}

// IndexEntries returns the number of entries in the index of a field, of all values and of one value.
func (r *Reader) IndexEntries(v *resource.Version, field int, value string) (all, one int) {
	st := r.indexes.find(v, field).state.Load()
	return st.keys.Len(), st.keys.Count(bucket(hashValue(value)), "")
}

// EvictIdleIndexes evicts the indexes that are idle at a time. It returns the number of remaining indexes, and whether
// another eviction is scheduled.
func (r *Reader) EvictIdleIndexes(now time.Time) (n int, scheduled bool) {
	r.indexes.evictIdle(now)
	return len(r.indexes.byField), r.indexes.evictTimer != nil
}

// EvictOverLimit evicts indexes of two fields of which the older one exceeds the size limit. It reports whether only
// the newer index remains.
func (r *Reader) EvictOverLimit(v *resource.Version) bool {
	a, b := r.indexes.find(v, 0), r.indexes.find(v, 1)
	a.used.Store(1)
	a.state.Store(&indexState{bytes: maxIndexBytes})
	b.state.Store(&indexState{bytes: 1})
	r.indexes.evictLeastRecent(b)
	return len(r.indexes.byField) == 1 && r.indexes.find(v, 1) == b
}
