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

// Revision returns the revision of the snapshot. It contains all changes up to this revision.
func (s *Snapshot) Revision() int64 { return s.revision }

// Get returns the record of key, or nil if the key does not exist.
func (s *Snapshot) Get(key string) *Record {
	r, _ := s.tree.Get(key)
	return r
}

// Walk yields, in key order, the records whose keys start with prefix and are greater than after.
// after is a whole key, or "" to start at the first key.
func (s *Snapshot) Walk(prefix, after string) iter.Seq[*Record] {
	return func(yield func(*Record) bool) { s.tree.Walk(prefix, after, yield) }
}

// Changed yields, in key order, the records below prefix that were written after the given revision.
// It does not report deletions. Its cost is proportional to the number of changes.
func (s *Snapshot) Changed(prefix string, after int64) iter.Seq[*Record] {
	return func(yield func(*Record) bool) { s.tree.Newer(prefix, after, yield) }
}

// Since yields, in key order, the changes below prefix between an older snapshot of the same store and s.
// Each change is the old and the new record; nil means that the key did not exist. Its cost is proportional
// to the number of changes.
func (s *Snapshot) Since(older *Snapshot, prefix string) iter.Seq2[*Record, *Record] {
	return func(yield func(old, current *Record) bool) { s.tree.Diff(older.tree, prefix, yield) }
}

// Part returns a snapshot for later use as the older argument of Since with the same prefix. It must not be used in
// any other way. It does not keep the records of other prefixes in memory.
func (s *Snapshot) Part(prefix string) *Snapshot { return &Snapshot{s.tree.Part(prefix), s.revision} }

// Count returns the number of records that Walk(prefix, after) yields, in logarithmic time.
func (s *Snapshot) Count(prefix, after string) int { return s.tree.Count(prefix, after) }

// Loader builds a Snapshot. The zero value is ready to use.
type Loader struct{ builder tree.Builder[*Record] }

// Add appends a record. Records must be added in the order of their keys.
func (l *Loader) Add(r *Record) error { return l.builder.Add(r.Key, r.Modified, r) }

// Snapshot returns the snapshot of the added records. The Loader must not be used again.
func (l *Loader) Snapshot(revision int64) *Snapshot {
	return &Snapshot{tree: l.builder.Tree(), revision: revision}
}
