// Package storage keeps revisioned bytes under ordered keys: one ordered
// history of commits, an immutable tree at its head, and cursors into it. It
// knows keys, not kinds, and is the only room that knows disk.
package storage

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// Record is the state of one key since revision Modified. It is immutable and
// shared; nobody may write to Value.
type Record struct {
	Key      string
	Value    []byte
	Created  int64     // revision of the write that made the key
	Modified int64     // revision of the write that left this value
	Expires  time.Time // zero: never

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
	// Prefix makes it a condition on all keys that start with Key: none of them
	// may have been created or modified after Revision.
	Prefix bool
	// Revision is the expected Modified of Key (0: absent), or with Prefix the
	// newest revision allowed below it.
	Revision int64
}

// ConflictError says that a write or guard of a commit no longer holds; nothing
// was written.
type ConflictError struct {
	Key     string  // of the Write or Guard
	Guard   bool    // a Guard failed, not a Write
	Current *Record // the state found (below a prefix: the newest); nil if there is none
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

// Missed says of a cursor's error that it has missed changes, for who can begin anew from the head.
func Missed(err error) bool {
	var compacted *CompactedError
	return errors.As(err, &compacted) || errors.Is(err, ErrLagging) || errors.Is(err, ErrUnavailable)
}

// reading gives an error of the log that has no kind of its own one.
func reading(err error) error {
	var compacted *CompactedError
	if err == nil || errors.As(err, &compacted) || errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnreadable, err)
}
