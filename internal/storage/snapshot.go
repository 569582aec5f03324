package storage

import (
	"iter"

	"github.com/trellis-k8s/trellis/internal/storage/tree"
)

// Snapshot is the immutable state at one revision.
type Snapshot struct {
	tree     tree.Tree[*Record]
	revision int64
}

// Revision up to which all changes (of any key) are in the snapshot.
func (s *Snapshot) Revision() int64 { return s.revision }

// Get returns the record of key or nil.
func (s *Snapshot) Get(key string) *Record {
	r, _ := s.tree.Get(key)
	return r
}

// Walk yields the records whose keys start with prefix and are greater than after
// (a whole key, or ""), in key order.
func (s *Snapshot) Walk(prefix, after string) iter.Seq[*Record] {
	return func(yield func(*Record) bool) { s.tree.Walk(prefix, after, yield) }
}

// Changed yields the records whose keys start with prefix and that were written after a revision, in
// key order. What was deleted since then is not told. It costs little where little has changed.
func (s *Snapshot) Changed(prefix string, after int64) iter.Seq[*Record] {
	return func(yield func(*Record) bool) { s.tree.Newer(prefix, after, yield) }
}

// Since yields what has changed at the keys that start with prefix between an older snapshot of the same store and s, in key
// order: the record of then and that of now, nil where there is none. It costs little where little has changed.
func (s *Snapshot) Since(older *Snapshot, prefix string) iter.Seq2[*Record, *Record] {
	return func(yield func(was, is *Record) bool) { s.tree.Diff(older.tree, prefix, yield) }
}

// Part is a snapshot to be told later what has changed Since, at the keys that start with prefix, and for nothing else. It does not keep
// what is stored elsewhere alive.
func (s *Snapshot) Part(prefix string) *Snapshot { return &Snapshot{s.tree.Part(prefix), s.revision} }

// Count says how many records Walk(prefix, after) yields, in logarithmic time.
func (s *Snapshot) Count(prefix, after string) int { return s.tree.Count(prefix, after) }

// Loader puts a Snapshot together. The zero value is ready.
type Loader struct{ builder tree.Builder[*Record] }

// Add takes the records in the order of their keys.
func (l *Loader) Add(r *Record) error { return l.builder.Add(r.Key, r.Modified, r) }

// Snapshot ends the loading.
func (l *Loader) Snapshot(revision int64) *Snapshot {
	return &Snapshot{tree: l.builder.Tree(), revision: revision}
}
