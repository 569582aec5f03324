package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// Store is one ordered history of commits. Revisions grow and may have gaps. The changes of one commit may share a
// revision. All methods are safe for concurrent use. Errors that wrap ErrUnavailable are temporary.
type Store interface {
	// Head returns the newest state that this process has seen. It never blocks.
	Head() *Snapshot
	// Fresh returns a state that contains all commits, of any process, that had completed before the call. It may
	// block.
	Fresh(ctx context.Context) (*Snapshot, error)
	// At returns the state at a revision. The error is a *CompactedError or *FutureError if the revision
	// cannot be read. An old state may have to be read from the log.
	At(ctx context.Context, revision int64) (*Snapshot, error)
	// Wait returns the head once it has reached revision, or ctx's error.
	Wait(ctx context.Context, revision int64) (*Snapshot, error)
	// Watch opens a cursor on the changes below prefix that are newer than revision after. It returns
	// the same errors as At.
	Watch(ctx context.Context, prefix string, after int64) (*Cursor, error)
	// Commit applies all writes or none. It returns their events, in the order of the writes, once they
	// are durable and visible in Head. If nothing was written, the error is one of these:
	//   - a *ConflictError if a write or guard does not hold
	//   - ctx's error
	//   - an error that wraps ErrInvalid, ErrTooLarge, ErrNoSpace, ErrUnavailable or ErrFailed
	//
	// Once a commit has started, Commit waits for its outcome even if ctx ends. It returns ErrInDoubt
	// if the outcome is still unknown after the store's timeout.
	Commit(ctx context.Context, writes []Write, guards ...Guard) ([]*Event, error)
	// Failed returns an ErrFailed with the cause once the store can no longer write, and nil before.
	Failed() error
	// Close ends all cursors and releases the log. It waits for commits in flight.
	Close() error
}

// Record is the state of one key since revision Modified. It is immutable and shared: Value must not be
// modified.
type Record struct {
	Key      string
	Value    []byte    // the JSON of the object, without a resourceVersion
	Created  int64     // revision of the write that created the key
	Modified int64     // revision of the last write
	Expires  time.Time // approximate time of deletion; the zero time means never

	// Derived caches data that readers compute from Value. Storage only copies Write.Derived into it.
	Derived atomic.Value
}

// Event is one change of one key. It is immutable and shared.
type Event struct {
	Revision int64
	Key      string
	Record   *Record // the new state; nil if the key was deleted
	Previous *Record // the state before; nil if the key did not exist

	Derived atomic.Value // as in Record
}

// Write changes one key. No key occurs in two writes of a commit.
type Write struct {
	Key      string        // not empty, at most MaxKey bytes, no NUL byte
	Value    []byte        // nil deletes the key; the caller must not modify it after the call
	Expected int64         // Modified of the record that this write replaces; 0 means that the key must not exist
	TTL      time.Duration // time until the key is deleted; 0 means never
	Derived  any           // stored in the new Record's Derived unless nil
}

// Guard is a condition on keys that a commit reads but does not write.
type Guard struct {
	Key string
	// Prefix extends the condition to all keys that start with Key. No existing key among them may have been
	// created or modified after Revision.
	Prefix bool
	// Revision is the expected Modified of Key, where 0 means absent. With Prefix, it is the newest permitted
	// Modified.
	Revision int64
}

// ConflictError is returned by Commit if a write or guard does not hold. Nothing was written.
type ConflictError struct {
	Key      string  // key of the Write or Guard
	Guard    bool    // true if a Guard does not hold, false if a Write does not
	Current  *Record // the stored record, or nil; with Guard.Prefix, the newest one
	Revision int64   // revision of the state that was checked
}

func (e *ConflictError) Error() string {
	if e.Current == nil {
		return fmt.Sprintf("storage: %s does not exist", e.Key)
	}
	return fmt.Sprintf("storage: %s is at revision %d", e.Current.Key, e.Current.Modified)
}

// CompactedError is returned for a revision that is no longer in the history.
type CompactedError struct{ Requested, Oldest int64 }

func (e *CompactedError) Error() string {
	return fmt.Sprintf("storage: revision %d has been compacted: the oldest revision is %d", e.Requested, e.Oldest)
}

// FutureError is returned for a revision newer than the head.
type FutureError struct{ Requested, Current int64 }

func (e *FutureError) Error() string {
	return fmt.Sprintf("storage: revision %d is in the future: the current revision is %d", e.Requested, e.Current)
}

// TooLargeError is the ErrTooLarge for a commit that exceeds a known limit of the log. Nothing was sent to the log.
type TooLargeError struct {
	Got, Limit int
	Unit       string // "bytes" or "objects"
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("storage: the commit has %d %s: the limit is %d", e.Got, e.Unit, e.Limit)
}

// Unwrap returns ErrTooLarge.
func (e *TooLargeError) Unwrap() error { return ErrTooLarge }

// MaxKey is the maximum length of a key in bytes.
const MaxKey = 4096

var (
	// ErrInvalid is wrapped by the error for a commit that cannot be valid in any state.
	ErrInvalid = errors.New("storage: invalid commit")
	// ErrTooLarge is wrapped by the error for a commit with too many or too large writes.
	ErrTooLarge = errors.New("storage: commit is too large")
	// ErrNoSpace is wrapped by the error for a commit that does not fit into the log's free space.
	// Nothing was written. Deletions still succeed. The embedded store also accepts small updates.
	ErrNoSpace = errors.New("storage: the log is nearly full")
	// ErrUnavailable is wrapped by errors of a log that is temporarily unavailable. Nothing was
	// written. The caller should retry later.
	ErrUnavailable = errors.New("storage: the log is temporarily unavailable")
	// ErrInDoubt is returned for a commit whose outcome is unknown after the timeout. If the commit
	// succeeded, it becomes visible later like any other.
	ErrInDoubt = errors.New("storage: the outcome of the commit is not known yet")
	// ErrFailed is wrapped by the errors of all commits after a permanent write failure of the log.
	// The commit that failed was not acknowledged and never becomes visible in this Store. After a
	// restart it is either fully present or absent.
	ErrFailed = errors.New("storage: the log has failed: writes fail until the server is restarted")
	// ErrUnreadable is wrapped by the error for an old state that cannot be read from the log.
	ErrUnreadable = errors.New("storage: the history cannot be read")
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("storage: closed")
	// ErrLagging ends a cursor that has fallen too far behind, or whose unread events were compacted.
	ErrLagging = errors.New("storage: cursor has fallen too far behind")
)

// MissedEvents reports whether a cursor's error means that events were missed. The caller can then continue
// from the head of the store.
func MissedEvents(err error) bool {
	var compacted *CompactedError
	return errors.As(err, &compacted) || errors.Is(err, ErrLagging) || errors.Is(err, ErrUnavailable)
}

// Validate returns an ErrInvalid for writes that are invalid in any state.
func Validate(writes []Write) error {
	if len(writes) == 0 {
		return fmt.Errorf("%w: no writes", ErrInvalid)
	}
	for i := range writes {
		w := &writes[i]
		switch {
		case w.Key == "":
			return fmt.Errorf("%w: empty key", ErrInvalid)
		case len(w.Key) > MaxKey:
			return fmt.Errorf("%w: key of %d bytes", ErrInvalid, len(w.Key))
		case strings.IndexByte(w.Key, 0) >= 0:
			return fmt.Errorf("%w: key %q contains a NUL byte", ErrInvalid, w.Key)
		case w.Value == nil && w.Expected == 0:
			return fmt.Errorf("%w: cannot delete %s: a deletion needs the expected revision of the key", ErrInvalid,
				w.Key)
		}
		for j := range i {
			if writes[j].Key == w.Key {
				return fmt.Errorf("%w: %s is written twice", ErrInvalid, w.Key)
			}
		}
	}
	return nil
}

// HistoryCost returns the approximate number of bytes that the history needs for the event, in addition to the live
// records.
func (e *Event) HistoryCost() int64 {
	n := int64(len(e.Key)) + eventOverhead
	if e.Previous != nil {
		n += int64(len(e.Previous.Value))
	}
	return n
}

// ReplayCost returns the approximate number of bytes of an event that HistoryReader.Replay has returned.
func (e *Event) ReplayCost() int64 {
	n := e.HistoryCost()
	if e.Record != nil {
		n += int64(len(e.Record.Value))
	}
	return n
}

// eventOverhead is the approximate size of an Event, its Record, and the tree nodes copied for it.
const eventOverhead = 512

// signal sends to c, a channel with a buffer of one, unless the buffer is full.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// readError wraps err in ErrUnreadable, unless err already is an error of this package or of a context.
func readError(err error) error {
	var compacted *CompactedError
	if err == nil || errors.As(err, &compacted) || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrClosed) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnreadable, err)
}
