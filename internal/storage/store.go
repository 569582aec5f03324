package storage

import (
	"context"
	"iter"
)

// Store is the one ordered history over a log.
type Store struct{}

// Head returns the newest state; it never blocks.
func (s *Store) Head() *Snapshot { panic("storage: Head") }

// At returns the state at a revision: *CompactedError or *FutureError otherwise.
func (s *Store) At(ctx context.Context, revision int64) (*Snapshot, error) { panic("storage: At") }

// Wait returns the head once it has reached revision, or ctx's error.
func (s *Store) Wait(ctx context.Context, revision int64) (*Snapshot, error) { panic("storage: Wait") }

// Commit applies all writes or none, each with a revision of its own, and returns
// their events once they are durable and visible in Head, in the order of the writes.
// The error is a *ConflictError if a write or guard does not hold.
func (s *Store) Commit(ctx context.Context, writes []Write, guards ...Guard) ([]*Event, error) {
	panic("storage: Commit")
}

// Watch opens a cursor on the changes of keys that start with prefix and are newer than
// revision after. *CompactedError or *FutureError as in At.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) (*Cursor, error) {
	panic("storage: Watch")
}

// Compact forgets history up to revision (that revision's own state stays readable).
func (s *Store) Compact(ctx context.Context, revision int64) error { panic("storage: Compact") }

// Close ends all cursors and releases the log. Commits in flight finish first.
func (s *Store) Close() error { panic("storage: Close") }

// Snapshot is the immutable state at one revision.
type Snapshot struct{}

// Revision of the newest change in the snapshot (of any key).
func (s *Snapshot) Revision() int64 { panic("storage: Revision") }

// Get returns the record of key or nil.
func (s *Snapshot) Get(key string) *Record { panic("storage: Get") }

// Walk yields the records whose keys start with prefix and are greater than after
// (a whole key, or ""), in key order.
func (s *Snapshot) Walk(prefix, after string) iter.Seq[*Record] { panic("storage: Walk") }

// Count says how many records Walk(prefix, after) yields, in logarithmic time.
func (s *Snapshot) Count(prefix, after string) int { panic("storage: Count") }

// Cursor delivers the events of a prefix in order, none twice, none left out.
// It is used by one goroutine.
type Cursor struct{}

// Ready receives when Take may have something new (events, progress or an error).
func (c *Cursor) Ready() <-chan struct{} { panic("storage: Ready") }

// Take appends what is ready to buf without blocking. Every event up to revision
// progress that belongs to the prefix has then been delivered. The error is final: ErrLagging
// or ErrClosed.
func (c *Cursor) Take(buf []*Event) (events []*Event, progress int64, err error) {
	panic("storage: Take")
}

// Close releases the cursor.
func (c *Cursor) Close() { panic("storage: Close") }
