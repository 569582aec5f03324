package embedded

import (
	"context"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// log is what a Store stands on: it makes commits durable and remembers history. It
// numbers revisions as the committer proposes them, one for each event.
//
// All methods but Append may be called at any time from any goroutine. An error of any
// of them wraps storage.ErrUnavailable if it passes by itself.
type log interface {
	storage.HistoryReader
	// Load calls add once for each live record, in key order, and returns where
	// the history stands. It is called once, first.
	Load(add func(*storage.Record) error) (extent, error)
	// Append makes all events durable, or none as far as any later Load can see.
	// Their revisions follow the last one without a gap. One call at a time. An error
	// that wraps ErrNoSpace or ErrUnavailable says that it was none, now and later.
	// Append waits for as long as it takes to know that, or until ctx ends. Any other
	// error leaves it open; the log is not used for writing any more then.
	Append(ctx context.Context, events []*storage.Event) error
	// Compact forgets what is not needed for states at or after revision, which is
	// not newer than the newest.
	Compact(revision int64) error
	// Close releases the log. No other call may run or follow.
	Close() error
}

// extent says where a log's history stands.
type extent struct {
	revision int64 // the newest
	oldest   int64 // the oldest state that can be read
	bytes    int64 // what the history costs beyond the live records, about
}
