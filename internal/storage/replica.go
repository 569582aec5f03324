package storage

import (
	"context"
	"sync"
)

// HistoryReader reads revisions that are no longer in a Replica's memory.
type HistoryReader interface {
	// Replay returns the events below prefix with revisions in (after, until]. It covers a bounded number of
	// revisions. reached is the last revision covered, with all its events. The error is a *CompactedError
	// if after precedes the history.
	Replay(ctx context.Context, prefix string, after, until int64) (events []*Event, reached int64, err error)
	// ReadAt calls put for each key whose record at revision target differs from that in base. The record is
	// nil if the key did not exist at target. The error is a *CompactedError if target precedes the history.
	ReadAt(ctx context.Context, target int64, base *Snapshot, put func(key string, r *Record)) error
}

// ReplayBytes is the sum of Event.ReplayCost after which a call of Replay ends. Many watches may replay at the same
// time.
const ReplayBytes = 2 << 20

// ReplicaOptions configures a Replica. 0 means the default.
type ReplicaOptions struct {
	RecentBytes int64 // size of the history kept in memory; default 8 MiB
	LagEvents   int   // number of events by which a cursor may fall behind; default 16384
	LagBytes    int64 // cost of these events; default 32 MiB
}

// Replica is one process's copy of an ordered log. It holds the newest state seen, the recent events, and the
// cursors. The owner of the log publishes all changes to it. Every Store embeds a Replica.
type Replica struct {
	reader      HistoryReader
	history     history
	broadcaster broadcaster
	waiters     waiters

	publishMu sync.Mutex      // held by Publish, Reset and TrimHistory
	lifetime  context.Context // cancelled by Close
	end       context.CancelFunc
	closeOnce sync.Once
	serving   sync.WaitGroup
}

// NewReplica returns a replica that starts from head. oldest is the oldest revision that reader can read.
func NewReplica(head *Snapshot, oldest int64, reader HistoryReader, o ReplicaOptions) *Replica {
	if o.RecentBytes <= 0 {
		o.RecentBytes = 8 << 20
	}
	if o.LagEvents <= 0 {
		o.LagEvents = 16384
	}
	if o.LagBytes <= 0 {
		o.LagBytes = 32 << 20
	}
	r := &Replica{reader: reader}
	r.lifetime, r.end = context.WithCancel(context.Background())
	r.history.init(head, oldest, o.RecentBytes)
	r.broadcaster.init(&r.history, o)
	r.serving.Go(r.broadcaster.dispatch)
	return r
}

// Head implements Store.
func (r *Replica) Head() *Snapshot { return r.history.state.Load().head }

// At implements Store.
func (r *Replica) At(ctx context.Context, revision int64) (*Snapshot, error) {
	if err := r.checkOpen(ctx); err != nil {
		return nil, err
	}
	return r.history.at(ctx, r.reader, revision)
}

// checkOpen returns an error if ctx has ended or the replica is closed.
func (r *Replica) checkOpen(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.lifetime.Err() != nil {
		return ErrClosed
	}
	return nil
}

// Wait implements Store.
func (r *Replica) Wait(ctx context.Context, revision int64) (*Snapshot, error) {
	if h := r.Head(); h.revision >= revision {
		return h, nil
	}
	reached := r.waiters.add(revision)
	defer r.waiters.remove(reached)
	if h := r.Head(); h.revision >= revision {
		return h, nil
	}
	select {
	case <-reached.reached:
		return r.Head(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-r.lifetime.Done():
		return nil, ErrClosed
	}
}

// Watch implements Store.
func (r *Replica) Watch(ctx context.Context, prefix string, after int64) (*Cursor, error) {
	if err := r.checkOpen(ctx); err != nil {
		return nil, err
	}
	if err := r.history.check(after); err != nil {
		return nil, err
	}
	return r.broadcaster.open(r, prefix, after), nil
}

// Publish makes d, a draft of Head, the new head. Only one goroutine may publish.
func (r *Replica) Publish(d *Draft) {
	r.publishMu.Lock()
	r.history.publish(d.Snapshot(), d.Events, r.broadcaster.published.Load())
	r.publishMu.Unlock()
	r.waiters.notify(d.Revision)
	r.broadcaster.trigger()
}

// Apply publishes events that another process may have written, and progress up to revision. The events
// must be in the order of their revisions; Apply sets their Previous. It skips events at or before the head.
func (r *Replica) Apply(events []*Event, revision int64) {
	head := r.Head()
	if revision <= head.revision {
		return
	}
	d := head.Draft()
	for _, e := range events {
		if e.Revision > head.revision {
			d.Add(e)
		}
	}
	d.Revision = revision
	r.Publish(d)
}

// Reset replaces the head by a later or earlier state. All cursors end with ErrLagging, because the events between
// the two states are unknown.
func (r *Replica) Reset(head *Snapshot, oldest int64) {
	r.publishMu.Lock()
	r.history.reset(head, oldest)
	r.publishMu.Unlock()
	r.waiters.notify(head.revision)
	r.broadcaster.reset()
}

// Oldest returns the oldest revision that can be read.
func (r *Replica) Oldest() int64 { return r.history.oldest.Load() }

// OldestInMemory returns the oldest revision that can be read without the HistoryReader.
func (r *Replica) OldestInMemory() int64 { return r.history.state.Load().base }

// Usage is the size of a Replica.
type Usage struct {
	Cursors int   // open cursors
	Events  int   // number of events in memory
	Bytes   int64 // their cost
}

// Usage returns the current size of the replica.
func (r *Replica) Usage() Usage {
	return Usage{r.broadcaster.count(), len(r.history.state.Load().recent), r.history.recentBytes.Load()}
}

// DropHistory makes revisions before the given one unreadable. It returns an error if the given revision
// itself cannot be read.
func (r *Replica) DropHistory(revision int64) error {
	if err := r.history.check(revision); err != nil {
		return err
	}
	r.history.oldest.Store(revision)
	r.history.cache.clear()
	return nil
}

// TrimHistory trims the recent history when no event is published to trigger it.
func (r *Replica) TrimHistory() {
	r.publishMu.Lock()
	defer r.publishMu.Unlock()
	r.history.trimPublished(r.broadcaster.published.Load())
}

// Close ends all cursors, after they have delivered the published events.
func (r *Replica) Close() {
	r.closeOnce.Do(func() {
		r.end()
		r.broadcaster.close()
		r.serving.Wait()
	})
}

// Closing returns a channel that is closed when Close begins.
func (r *Replica) Closing() <-chan struct{} { return r.lifetime.Done() }
