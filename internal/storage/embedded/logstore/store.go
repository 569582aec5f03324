// Package logstore implements storage.Store over a Log that only this process writes. The store numbers revisions and
// groups commits, deletes expired keys and compacts the history. It must not depend on the place of the log.
package logstore

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Store is a storage.Store whose log is written by this process only. Its published state is therefore
// complete.
type Store struct {
	*storage.Replica
	log       Log
	options   Options
	queue     queue
	expiry    expiry
	retention retention

	stop chan struct{} // closed when the last commit has completed
	// lifetime ends when Close begins. Append then no longer waits for a failed log to recover.
	lifetime  context.Context
	end       context.CancelFunc
	failed    atomic.Pointer[error]
	closeOnce sync.Once
	closeErr  error // result of Close

	// history guards reads and compactions of the log against Close.
	history historyLog

	committing, serving sync.WaitGroup
}

// Options configures a Store. Unset fields mean their defaults.
type Options struct {
	storage.ReplicaOptions
	CompactAfter time.Duration // default 5 minutes
	HistoryBytes int64         // default 256 MiB
	Logger       *slog.Logger

	// LowSpace receives repeatedly while disk space is low. The store then shortens the history.
	LowSpace <-chan struct{}
	// CommitTimeout returns a channel that receives when a commit has timed out. The default is 10 seconds.
	CommitTimeout func() <-chan time.Time

	Now   func() time.Time
	After func(time.Duration) <-chan time.Time
}

// New loads the log and starts a Store on it. The Store owns the log. newStore closes the log if it
// fails.
func New(l Log, o Options) (*Store, error) {
	o.setDefaults()
	s := &Store{log: l, options: o, stop: make(chan struct{})}
	s.history.log = l
	s.lifetime, s.end = context.WithCancel(context.Background())
	if err := s.load(); err != nil {
		_ = l.Close() // the first error is more specific
		return nil, err
	}
	s.queue.init()
	s.committing.Go(s.commitLoop)
	s.serving.Go(s.compactLoop)
	return s, nil
}

func (o *Options) setDefaults() {
	if o.CompactAfter <= 0 {
		o.CompactAfter = 5 * time.Minute
	}
	if o.HistoryBytes <= 0 {
		o.HistoryBytes = 256 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.CommitTimeout == nil {
		o.CommitTimeout = func() <-chan time.Time { return time.After(10 * time.Second) }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.After == nil {
		o.After = time.After
	}
}

// load builds the tree from the log.
func (s *Store) load() error {
	var l storage.Loader
	s.expiry.init()
	found, err := s.log.Load(func(r *storage.Record) error {
		s.expiry.add(r)
		return l.Add(r)
	})
	if err != nil {
		return fmt.Errorf("storage: load: %w", err)
	}
	s.retention.total = found.Bytes
	s.Replica = storage.NewReplica(l.Snapshot(found.Revision), found.Oldest, &s.history, s.options.ReplicaOptions)
	return nil
}

// Fresh returns the head, because no other process writes to the log.
func (s *Store) Fresh(context.Context) (*storage.Snapshot, error) { return s.Head(), nil }

// Compact drops the history before revision. The state at revision stays readable.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.compact(revision)
}

// Close implements storage.Store.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.queue.close()
		s.end()
		s.committing.Wait()
		close(s.stop)
		s.Replica.Close()
		s.serving.Wait()
		s.history.close()
		s.closeErr = s.log.Close()
	})
	return s.closeErr
}

// historyLog is a storage.HistoryReader over a log. After close, it no longer uses the log.
type historyLog struct {
	log    Log
	mu     sync.RWMutex
	closed bool
}

// do runs work unless the log has been closed.
func (p *historyLog) do(work func() error) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return storage.ErrClosed
	}
	return work()
}

// close waits for running calls of do. Later calls fail.
func (p *historyLog) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
}

// Replay implements storage.HistoryReader.
func (p *historyLog) Replay(
	ctx context.Context, prefix string, after, until int64,
) (events []*storage.Event, reached int64, err error) {
	reached = after
	err = p.do(func() (err error) {
		events, reached, err = p.log.Replay(ctx, prefix, after, until)
		return err
	})
	return events, reached, err
}

// ReadAt implements storage.HistoryReader.
func (p *historyLog) ReadAt(
	ctx context.Context, target int64, base *storage.Snapshot, put func(string, *storage.Record),
) error {
	return p.do(func() error { return p.log.ReadAt(ctx, target, base, put) })
}
