package embedded

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Store is a storage.Store over a log of its own: nobody else writes to it. What it has
// published is all there is.
type Store struct {
	*storage.Replica
	log       log
	options   options
	queue     queue
	expiry    expiry
	retention retention

	stop chan struct{} // closed when the last commit has been carried out
	// lifetime ends when Close begins; what the log waits for then is not waited for.
	lifetime context.Context
	end      context.CancelFunc
	failed   atomic.Pointer[error]
	closed   sync.Once
	result   error // of Close

	// past is held for reading by those who read or shorten old history in the log.
	past past

	committing, serving sync.WaitGroup
}

// options of a Store. The zero value of each field means its default.
type options struct {
	storage.ReplicaOptions
	compactAfter time.Duration // how long history is kept; 5 minutes
	historyBytes int64         // how much history is kept at most; 256 MiB
	logger       *slog.Logger

	// tight receives, again and again, while the log wants the history to be short.
	tight <-chan struct{}
	// patience receives when a commit has been waited for long enough; after 10 seconds.
	patience func() <-chan time.Time

	now   func() time.Time
	after func(time.Duration) <-chan time.Time
}

// newStore loads the log and starts a Store on it, which owns the log from now on,
// also when that fails.
func newStore(l log, o options) (*Store, error) {
	o.setDefaults()
	s := &Store{log: l, options: o, stop: make(chan struct{})}
	s.past.log = l
	s.lifetime, s.end = context.WithCancel(context.Background())
	if err := s.load(); err != nil {
		_ = l.Close() // the first error says more
		return nil, err
	}
	s.queue.init()
	s.committing.Go(s.commitLoop)
	s.serving.Go(s.janitor)
	return s, nil
}

func (o *options) setDefaults() {
	if o.compactAfter <= 0 {
		o.compactAfter = 5 * time.Minute
	}
	if o.historyBytes <= 0 {
		o.historyBytes = 256 << 20
	}
	if o.logger == nil {
		o.logger = slog.New(slog.DiscardHandler)
	}
	if o.patience == nil {
		o.patience = func() <-chan time.Time { return time.After(10 * time.Second) }
	}
	if o.now == nil {
		o.now = time.Now
	}
	if o.after == nil {
		o.after = time.After
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
	s.retention.total = found.bytes
	s.Replica = storage.NewReplica(l.Snapshot(found.revision), found.oldest, &s.past, s.options.ReplicaOptions)
	return nil
}

// Fresh returns the head: nobody else writes.
func (s *Store) Fresh(context.Context) (*storage.Snapshot, error) { return s.Head(), nil }

// Compact forgets history up to revision (that revision's own state stays readable).
func (s *Store) Compact(ctx context.Context, revision int64) error {
	if err := ctx.Err(); err != nil {
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
		s.Replica.Close()
		s.serving.Wait()
		s.past.end()
		s.result = s.log.Close()
	})
	return s.result
}

// past is the log's, until that is closed.
type past struct {
	log  log
	mu   sync.RWMutex
	gone bool
}

// use runs work unless the log has been closed.
func (p *past) use(work func() error) error {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.gone {
		return storage.ErrClosed
	}
	return work()
}

// end waits for those who use the log, and keeps others from it.
func (p *past) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = true
}

// Replay is the log's.
func (p *past) Replay(ctx context.Context, prefix string, after, until int64) (events []*storage.Event, reached int64, err error) {
	reached = after
	err = p.use(func() (err error) {
		events, reached, err = p.log.Replay(ctx, prefix, after, until)
		return err
	})
	return events, reached, err
}

// ReadAt is the log's.
func (p *past) ReadAt(ctx context.Context, target int64, base *storage.Snapshot, put func(string, *storage.Record)) error {
	return p.use(func() error { return p.log.ReadAt(ctx, target, base, put) })
}
