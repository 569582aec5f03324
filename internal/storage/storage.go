// Package storage keeps revisioned bytes under ordered keys: one ordered
// history of commits, an immutable tree at its head, and cursors into it. It
// knows keys, not kinds, and is the only room that knows disk.
package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

// Store is one ordered history of commits. Revisions grow; they need not be dense, and all
// changes of a commit may share one. All methods may be called from any goroutine. An
// error of any of them wraps ErrUnavailable if it passes by itself.
type Store interface {
	// Head returns the newest state that this process has seen; it never blocks.
	Head() *Snapshot
	// Fresh returns a state that holds all that had been committed, by anybody, when it was called.
	// It may have to wait.
	Fresh(ctx context.Context) (*Snapshot, error)
	// At returns the state at a revision: *CompactedError or *FutureError otherwise.
	// An old state may have to be read from where the history is kept.
	At(ctx context.Context, revision int64) (*Snapshot, error)
	// Wait returns the head once it has reached revision, or ctx's error.
	Wait(ctx context.Context, revision int64) (*Snapshot, error)
	// Watch opens a cursor on the changes of keys that start with prefix and are newer than
	// revision after. *CompactedError or *FutureError as in At.
	Watch(ctx context.Context, prefix string, after int64) (*Cursor, error)
	// Commit applies all writes or none, and returns their events once they are durable and
	// visible in Head, in the order of the writes. The error is a *ConflictError if a
	// write or guard does not hold, wraps ErrInvalid, ErrTooLarge, ErrNoSpace, ErrUnavailable or
	// ErrFailed, or is ctx's: then nothing was written. A commit that is under way is
	// waited for, whatever becomes of ctx, until patience has run out: ErrInDoubt.
	Commit(ctx context.Context, writes []Write, guards ...Guard) ([]*Event, error)
	// Failed is why nothing can be written any more, an ErrFailed, and nil as long as writes go on.
	Failed() error
	// Close ends all cursors and releases what is below. Commits in flight finish first.
	Close() error
}

// Record is the state of one key since revision Modified. It is immutable and
// shared; nobody may write to Value.
type Record struct {
	Key      string
	Value    []byte    // the JSON of the object, without a resourceVersion
	Created  int64     // revision of the write that made the key
	Modified int64     // revision of the write that left this value
	Expires  time.Time // about when; zero: never

	// Derived is for the reader: whatever it computes from Value once and wants
	// to find again. Storage only hands through what Write.Derived holds.
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
	Value    []byte        // nil deletes; owned by storage from now on
	Expected int64         // Modified of the state this write replaces; 0: the key must not exist
	TTL      time.Duration // after which the key is deleted; 0: never
	Derived  any           // stored into the new Record's Derived if not nil
}

// Guard is a condition on state that the writes of a commit rely on.
type Guard struct {
	Key string
	// Prefix makes it a condition on all keys that start with Key: none of those
	// that are there may have been created or modified after Revision.
	Prefix bool
	// Revision is the expected Modified of Key (0: absent), or with Prefix the
	// newest revision allowed below it.
	Revision int64
}

// ConflictError says that a write or guard of a commit no longer holds; nothing
// was written.
type ConflictError struct {
	Key      string  // of the Write or Guard
	Guard    bool    // a Guard failed, not a Write
	Current  *Record // the state found (below a prefix: the newest); nil if there is none
	Revision int64   // of the state in which that was found
}

func (e *ConflictError) Error() string {
	if e.Current == nil {
		return fmt.Sprintf("storage: %s does not exist", e.Key)
	}
	return fmt.Sprintf("storage: %s is at revision %d", e.Current.Key, e.Current.Modified)
}

// CompactedError is for a revision that has left the history.
type CompactedError struct{ Requested, Oldest int64 }

func (e *CompactedError) Error() string {
	return fmt.Sprintf("storage: revision %d has been compacted, the oldest is %d", e.Requested, e.Oldest)
}

// FutureError is for a revision that is not there yet.
type FutureError struct{ Requested, Current int64 }

func (e *FutureError) Error() string {
	return fmt.Sprintf("storage: revision %d is in the future, the current one is %d", e.Requested, e.Current)
}

// MaxKey is the greatest length of a key in bytes.
const MaxKey = 4096

var (
	// ErrInvalid is wrapped by the error for a commit that no state could accept.
	ErrInvalid = errors.New("storage: invalid commit")
	// ErrTooLarge is wrapped by the error for a commit that has too many writes, or too large ones.
	ErrTooLarge = errors.New("storage: the commit is too large")
	// ErrNoSpace is wrapped by the error for a commit that the log has no room for.
	// Nothing was written; deletions still can be, and updates that take little more room.
	ErrNoSpace = errors.New("storage: the disk is nearly full")
	// ErrUnavailable is wrapped by the error for what the log cannot do for the time
	// being. Nothing was written, and trying again later is right.
	ErrUnavailable = errors.New("storage: the log is not available at the moment")
	// ErrInDoubt is returned for a commit whose end has not become known in time. If it
	// was carried out it becomes visible later, as any other.
	ErrInDoubt = errors.New("storage: it is not known yet whether the commit was carried out")
	// ErrFailed is wrapped by the error of every commit after one that the log
	// failed to write for good. That one was not acknowledged and never becomes visible
	// in this Store; a later start finds it either whole or not at all.
	ErrFailed = errors.New("storage: the log has failed, nothing can be written until the server is restarted")
	// ErrUnreadable is wrapped by the error for old states that the log cannot read.
	ErrUnreadable = errors.New("storage: the history cannot be read")
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("storage: closed")
	// ErrLagging ends a cursor that fell too far behind, or whose past was compacted
	// before it was read.
	ErrLagging = errors.New("storage: the cursor cannot keep up")
)

// MissedEvents says of a cursor's error that it has missed changes, for who can begin anew from the head.
func MissedEvents(err error) bool {
	var compacted *CompactedError
	return errors.As(err, &compacted) || errors.Is(err, ErrLagging) || errors.Is(err, ErrUnavailable)
}

// Validate refuses writes that no state could accept.
func Validate(writes []Write) error {
	if len(writes) == 0 {
		return fmt.Errorf("%w: nothing to write", ErrInvalid)
	}
	for i := range writes {
		w := &writes[i]
		switch {
		case w.Key == "":
			return fmt.Errorf("%w: empty key", ErrInvalid)
		case len(w.Key) > MaxKey:
			return fmt.Errorf("%w: key of %d bytes", ErrInvalid, len(w.Key))
		case strings.IndexByte(w.Key, 0) >= 0:
			return fmt.Errorf("%w: key %q holds a NUL byte", ErrInvalid, w.Key)
		case w.Value == nil && w.Expected == 0:
			return fmt.Errorf("%w: %s is to be deleted and expected not to exist", ErrInvalid, w.Key)
		}
		for j := range i {
			if writes[j].Key == w.Key {
				return fmt.Errorf("%w: %s is written twice", ErrInvalid, w.Key)
			}
		}
	}
	return nil
}

// HistoryCost is about what keeping an event takes beyond the live records.
func (e *Event) HistoryCost() int64 {
	n := int64(len(e.Key)) + eventOverhead
	if e.Previous != nil {
		n += int64(len(e.Previous.Value))
	}
	return n
}

// eventOverhead is about the size of an Event, its Record and the nodes of the
// tree that were copied for it.
const eventOverhead = 512

// poke makes sure that c, which has room for one, holds something.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// reading gives an error of the log that has no kind of its own one.
func reading(err error) error {
	var compacted *CompactedError
	if err == nil || errors.As(err, &compacted) || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrClosed) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnreadable, err)
}
