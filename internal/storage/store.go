package storage

import (
	"context"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage/tree"
)

// Options tune a Store. The zero value of each field means its default.
type Options struct {
	CompactAfter time.Duration // how long history is kept; 5 minutes
	HistoryBytes int64         // how much history is kept at most; 256 MiB
	RecentBytes  int64         // how much of it is kept in memory as well; 8 MiB
	LagEvents    int           // how far a cursor may fall behind; 16384
	LagBytes     int64         // likewise; 32 MiB
	Logger       *slog.Logger

	// Tight receives, again and again, while the log wants the history to be short.
	Tight <-chan struct{}
	// Patience receives when a commit has been waited for long enough; after 10 seconds.
	Patience func() <-chan time.Time

	Now   func() time.Time                     // time.Now
	After func(time.Duration) <-chan time.Time // time.After
}

// Store is the one ordered history over a log. All methods may be called from
// any goroutine.
type Store struct {
	log     Log
	options Options
	history history
	hub     hub
	queue   queue
	expiry  expiry
	waiters waiters

	stop chan struct{} // closed by Close
	// lifetime ends when Close begins; what the log waits for then is not waited for.
	lifetime context.Context
	end      context.CancelFunc
	failed   atomic.Pointer[error]
	closed   sync.Once
	result   error // of Close

	committing, serving sync.WaitGroup
}

// New loads the log and starts a Store on it, which owns the log from now on,
// also when New fails.
func New(log Log, o Options) (*Store, error) {
	o.setDefaults()
	s := &Store{log: log, options: o, stop: make(chan struct{})}
	s.lifetime, s.end = context.WithCancel(context.Background())
	if err := s.load(); err != nil {
		_ = log.Close() // the first error says more
		return nil, err
	}
	s.queue.init()
	s.hub.init(&s.history, o)
	s.committing.Go(s.commitLoop)
	s.serving.Go(s.hub.dispatch)
	s.serving.Go(s.janitor)
	return s, nil
}

func (o *Options) setDefaults() {
	if o.CompactAfter <= 0 {
		o.CompactAfter = 5 * time.Minute
	}
	if o.HistoryBytes <= 0 {
		o.HistoryBytes = 256 << 20
	}
	if o.RecentBytes <= 0 {
		o.RecentBytes = 8 << 20
	}
	if o.LagEvents <= 0 {
		o.LagEvents = 16384
	}
	if o.LagBytes <= 0 {
		o.LagBytes = 32 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Patience == nil {
		o.Patience = func() <-chan time.Time { return time.After(10 * time.Second) }
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
	var b tree.Builder[*Record]
	s.expiry.init()
	extent, err := s.log.Load(func(r *Record) error {
		s.expiry.add(r)
		return b.Add(r.Key, r.Modified, r)
	})
	if err != nil {
		return fmt.Errorf("storage: load: %w", err)
	}
	s.history.init(&Snapshot{tree: b.Tree(), revision: extent.Revision}, extent)
	return nil
}

// Head returns the newest state; it never blocks.
func (s *Store) Head() *Snapshot { return s.history.state.Load().head }

// Get returns the newest record of key or nil; it never blocks.
func (s *Store) Get(key string) *Record {
	r, _ := s.history.state.Load().head.tree.Get(key)
	return r
}

// At returns the state at a revision: *CompactedError or *FutureError otherwise.
// An old state may have to be read from disk.
func (s *Store) At(ctx context.Context, revision int64) (*Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.isClosed() {
		return nil, ErrClosed
	}
	return s.history.at(s.log, revision)
}

// Wait returns the head once it has reached revision, or ctx's error.
func (s *Store) Wait(ctx context.Context, revision int64) (*Snapshot, error) {
	if h := s.Head(); h.revision >= revision {
		return h, nil
	}
	reached := s.waiters.add(revision)
	defer s.waiters.remove(reached)
	if h := s.Head(); h.revision >= revision {
		return h, nil
	}
	select {
	case <-reached.c:
		return s.Head(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.stop:
		return nil, ErrClosed
	}
}

// Watch opens a cursor on the changes of keys that start with prefix and are newer than
// revision after. *CompactedError or *FutureError as in At.
func (s *Store) Watch(ctx context.Context, prefix string, after int64) (*Cursor, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if s.isClosed() {
		return nil, ErrClosed
	}
	if err := s.history.check(after); err != nil {
		return nil, err
	}
	return s.hub.open(s.log, prefix, after), nil
}

// Compact forgets history up to revision (that revision's own state stays readable).
func (s *Store) Compact(ctx context.Context, revision int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.isClosed() {
		return ErrClosed
	}
	if err := s.history.check(revision); err != nil {
		return err
	}
	return s.compact(revision)
}

// Close ends all cursors and releases the log. Commits in flight finish first.
func (s *Store) Close() error {
	s.closed.Do(func() {
		s.queue.close()
		s.end()
		s.committing.Wait()
		close(s.stop)
		s.hub.close()
		s.serving.Wait()
		s.history.maintenance.Lock() // a compaction or a read of old history ends first
		defer s.history.maintenance.Unlock()
		s.history.gone = true
		s.result = s.log.Close()
	})
	return s.result
}

func (s *Store) isClosed() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// Snapshot is the immutable state at one revision.
type Snapshot struct {
	tree     tree.Tree[*Record]
	revision int64
}

// Revision of the newest change in the snapshot (of any key).
func (s *Snapshot) Revision() int64 { return s.revision }

// Get returns the record of key or nil.
func (s *Snapshot) Get(key string) *Record {
	r, _ := s.tree.Get(key)
	return r
}

// Walk yields the records whose keys start with prefix and are greater than after
// (a whole key, or ""), in key order.
func (s *Snapshot) Walk(prefix, after string) iter.Seq[*Record] {
	return func(yield func(*Record) bool) { s.tree.Walk(prefix, after, yield) }
}

// Changed yields the records whose keys start with prefix and that were written after a revision, in
// key order. What was deleted since then is not told. It costs little where little has changed.
func (s *Snapshot) Changed(prefix string, after int64) iter.Seq[*Record] {
	return func(yield func(*Record) bool) { s.tree.Newer(prefix, after, yield) }
}

// Count says how many records Walk(prefix, after) yields, in logarithmic time.
func (s *Snapshot) Count(prefix, after string) int { return s.tree.Count(prefix, after) }
