package storage

import "context"

// Log is what a Store stands on: it makes commits durable and remembers history.
// The embedded log numbers revisions as the Store proposes them. A log that is
// shared by replicas numbers them itself and tells of commits by a feed; it
// replaces the committer (commit.go), not what lies behind publish.
//
// All methods but Append may be called at any time from any goroutine. An error of any
// of them wraps ErrUnavailable if it passes by itself.
type Log interface {
	// Load calls add once for each live record, in key order, and returns where
	// the history stands. It is called once, first.
	Load(add func(*Record) error) (Extent, error)
	// Append makes all events durable, or none as far as any later Load can see.
	// Their revisions follow the last one without a gap. One call at a time. An error
	// that wraps ErrNoSpace or ErrUnavailable says that it was none, now and later.
	// Append waits for as long as it takes to know that, or until ctx ends. Any other
	// error leaves it open; the log is not used for writing any more then.
	Append(ctx context.Context, events []*Event) error
	// Replay returns the events of keys that start with prefix in (after, until],
	// looking at no more than a bounded number of revisions: reached is the last
	// one looked at. *CompactedError if after is older than the history.
	Replay(prefix string, after, until int64) (events []*Event, reached int64, err error)
	// Rewind calls put with the record, or nil, that each key changed in
	// (target, from] had at target. *CompactedError if that is too old.
	Rewind(target, from int64, put func(key string, r *Record)) error
	// Compact forgets what is not needed for states at or after revision, which is
	// not newer than the newest.
	Compact(revision int64) error
	// Close releases the log. No other call may run or follow.
	Close() error
}

// Extent says where a log's history stands.
type Extent struct {
	Revision int64 // the newest
	Oldest   int64 // the oldest state that can be read
	Bytes    int64 // what the history costs beyond the live records, about
}

// HistoryCost is what a log counts for an event in Extent.Bytes: what keeping it
// takes beyond the live records.
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
