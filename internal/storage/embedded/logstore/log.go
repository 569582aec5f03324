package logstore

import (
	"context"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Log makes commits durable and keeps their history. The committer assigns the revisions, one to each event.
//
// All methods except Append may be called at any time from any goroutine. Errors that wrap
// storage.ErrUnavailable are temporary.
type Log interface {
	storage.HistoryReader
	// Load calls add for each live record, in key order, and returns the extent of the history. It must be
	// called once, before the other methods.
	Load(add func(*storage.Record) error) (Extent, error)
	// Append makes all events durable or none. The revisions of the events must follow the last one without a gap.
	// Calls must not overlap. If the error wraps ErrNoSpace or ErrUnavailable, no event is durable or becomes
	// durable later. Append waits until this is known, or until ctx ends. After any other error, the outcome is
	// unknown, and Append must not be called again.
	Append(ctx context.Context, events []*storage.Event) error
	// Compact drops the history that is not needed for states at or after revision, which must not be newer than
	// the newest revision.
	Compact(revision int64) error
	// Close releases the log. No other call may run at the same time or later.
	Close() error
}

// Extent describes a log's history.
type Extent struct {
	Revision int64 // newest revision
	Oldest   int64 // oldest revision whose state can be read
	Bytes    int64 // approximate size of the history, without the live records
}
