package storage

import (
	"context"
	"sync"
)

// HistoryReader is where a Replica reads what has left its memory.
type HistoryReader interface {
	// Replay returns the events of keys that start with prefix in (after, until], looking at
	// no more than a bounded number of revisions: reached is the last one looked at, with
	// all of its events. *CompactedError if after is older than the history.
	Replay(ctx context.Context, prefix string, after, until int64) (events []*Event, reached int64, err error)
	// ReadAt calls put with the record, or nil, that a key had at revision target, for all
	// keys where that is another one than in base. *CompactedError if target is too old.
	ReadAt(ctx context.Context, target int64, base *Snapshot, put func(key string, r *Record)) error
}

// ReplicaOptions tune a Replica. The zero value of each field means its default.
type ReplicaOptions struct {
	RecentBytes int64 // how much history is kept in memory; 8 MiB
	LagEvents   int   // how far a cursor may fall behind; 16384
	LagBytes    int64 // likewise; 32 MiB
}

// Replica is what one process knows of an ordered log: the newest state that it has seen,
// the events that led there, and who reads along. It decides nothing: whoever owns the log
// publishes what has happened. Every Store has one.
type Replica struct {
	past    HistoryReader
	history history
	hub     hub
	waiters waiters

	publishing sync.Mutex      // one Draft, or one Forget, at a time
	lifetime   context.Context // ends with Close
	end        context.CancelFunc
	closed     sync.Once
	serving    sync.WaitGroup
}

// NewReplica starts from a state; oldest is the oldest revision that past can be asked for.
func NewReplica(head *Snapshot, oldest int64, past HistoryReader, o ReplicaOptions) *Replica {
	if o.RecentBytes <= 0 {
		o.RecentBytes = 8 << 20
	}
	if o.LagEvents <= 0 {
		o.LagEvents = 16384
	}
	if o.LagBytes <= 0 {
		o.LagBytes = 32 << 20
	}
	r := &Replica{past: past}
	r.lifetime, r.end = context.WithCancel(context.Background())
	r.history.init(head, oldest, o.RecentBytes)
	r.hub.init(&r.history, o)
	r.serving.Go(r.hub.dispatch)
	return r
}

// Head returns the newest state that this process has seen; it never blocks.
func (r *Replica) Head() *Snapshot { return r.history.state.Load().head }

// At is Store.At.
func (r *Replica) At(ctx context.Context, revision int64) (*Snapshot, error) {
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	return r.history.at(ctx, r.past, revision)
}

// open says whether something can be asked for.
func (r *Replica) open(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.lifetime.Err() != nil {
		return ErrClosed
	}
	return nil
}

// Wait is Store.Wait.
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
	case <-reached.c:
		return r.Head(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-r.lifetime.Done():
		return nil, ErrClosed
	}
}

// Watch is Store.Watch.
func (r *Replica) Watch(ctx context.Context, prefix string, after int64) (*Cursor, error) {
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	if err := r.history.check(after); err != nil {
		return nil, err
	}
	return r.hub.open(r, prefix, after), nil
}

// Publish makes a draft of Head the head. There is one publisher.
func (r *Replica) Publish(d *Draft) {
	r.publishing.Lock()
	r.history.publish(d.Snapshot(), d.Events, r.hub.published.Load())
	r.publishing.Unlock()
	r.waiters.wake(d.Revision)
	r.hub.signal()
}

// Apply publishes what a feed tells: events in the order of their revisions, of which their Previous is not known, and
// all of those up to revision. What has been told before is skipped.
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

// Reset goes on from another state, between which and the head events have been missed: all cursors end with ErrLagging.
func (r *Replica) Reset(head *Snapshot, oldest int64) {
	r.publishing.Lock()
	r.history.reset(head, oldest)
	r.publishing.Unlock()
	r.waiters.wake(head.revision)
	r.hub.reset()
}

// Oldest is the oldest revision that may be read.
func (r *Replica) Oldest() int64 { return r.history.oldest.Load() }

// HistoryBytes is the oldest revision that can be read without asking the past.
func (r *Replica) HistoryBytes() int64 { return r.history.state.Load().base }

// DropHistory makes what is older than revision be gone, if it can be read.
func (r *Replica) DropHistory(revision int64) error {
	if err := r.history.check(revision); err != nil {
		return err
	}
	r.history.oldest.Store(revision)
	r.history.rewound.drop()
	return nil
}

// TrimHistory lets go of what publishing would let go of, where nothing is published.
func (r *Replica) TrimHistory() {
	r.publishing.Lock()
	defer r.publishing.Unlock()
	r.history.shrink(r.hub.published.Load())
}

// Close ends all cursors, which give what has been published first.
func (r *Replica) Close() {
	r.closed.Do(func() {
		r.end()
		r.hub.close()
		r.serving.Wait()
	})
}

// Closing is closed when Close begins.
func (r *Replica) Closing() <-chan struct{} { return r.lifetime.Done() }
