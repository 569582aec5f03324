package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// disk is the log in a directory.
type disk struct {
	dir      string
	fs       vfs.FS
	lock     io.Closer
	logger   *slog.Logger
	memTable uint64 // size of the engine's memtables
	codecs   storage.Codecs
	pause    func(time.Duration) <-chan time.Time
	now      func() time.Time
	space    *space
	health   *Health

	tail tally // what Append has made durable; its own

	mu      sync.Mutex
	current *engine
	renewed chan struct{} // closed when current changes, or never will again
	final   error         // why it never will
	durable tally         // a copy of tail for others
	pending tally         // what tail becomes if the Append that runs succeeds

	written  chan struct{} // ready after a commit that HEAD may lack
	rotated  chan struct{} // ready when the engine has begun another log file
	marking  sync.Mutex    // held while HEAD is written
	marked   head          // the content of HEAD
	accepted int64         // Options.AcceptLossAfter
	found    *survey       // of the directory before it was opened
	loss     error         // the damage that is accepted

	tight     chan struct{} // options.tight
	compacted atomic.Int64  // the revision that Compact was last called with
	squeezer  squeezer
	pace      pace

	life    context.Context // ends with Close
	end     context.CancelFunc
	keeping sync.WaitGroup
}

func newDisk(o Options, fs vfs.FS, dir string, lock io.Closer) *disk {
	l := &disk{
		dir: dir, fs: fs, lock: lock, logger: o.Logger, memTable: o.memTable, codecs: o.Codecs, pause: o.pause, health: o.Health,
		renewed: make(chan struct{}), tight: make(chan struct{}, 1),
		written: make(chan struct{}, 1), rotated: make(chan struct{}, 1), accepted: o.AcceptLossAfter,
		now: o.Now, pace: pace{now: o.Now},
	}
	l.life, l.end = context.WithCancel(context.Background())
	l.space = newSpace(o, fs, dir)
	l.current = l.newEngine()
	return l
}

func (l *disk) newEngine() *engine {
	return &engine{
		dir: l.dir, fs: l.fs, logger: l.logger, memTable: l.memTable, codecs: l.codecs, pause: l.pause,
		begun: func() { l.signal(l.rotated) },
		fatal: make(chan struct{}), closing: make(chan struct{}),
	}
}

// engine returns the one at work, or the one that failed last.
func (l *disk) engine() *engine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// damage wraps what was found.
func (l *disk) damage(what string, err error) error {
	return &DamageError{Dir: l.dir, Detail: what, Err: err}
}

// Load reads the live records. It compares them with the index, and the end of the index with HEAD.
func (l *disk) Load(add func(*storage.Record) error) (extent, error) {
	e := l.current
	if err := e.reading("the engine's files", e.prepare); err != nil {
		return extent{}, err
	}
	if l.loss != nil {
		if err := e.reading("the engine's files", func() error { return e.restart(l.found.next()) }); err != nil {
			return extent{}, err
		}
	}
	oldest, newest, err := e.load(add)
	if err != nil {
		return extent{}, err
	}
	if err := l.checkMark(newest.tally); err != nil {
		return extent{}, err
	}
	l.warn(newest.revision)
	l.tail, l.durable = newest.tally, newest.tally
	l.look()
	l.keeping.Go(l.keep)
	l.keeping.Go(l.keepMark)
	return extent{newest.revision, oldest.revision, newest.bytes - oldest.bytes}, nil
}

// Append writes one batch and waits until it is on disk. If the engine fails in the
// midst of it, what there is says what became of it, once it can be read again.
func (l *disk) Append(ctx context.Context, events []*storage.Event) error {
	if err := l.admit(events); err != nil {
		return err
	}
	e := l.engine()
	if e.failure() != nil {
		return l.notNow(e)
	}
	batch, tail, err := l.newBatch(e.db, events)
	if err != nil {
		return err
	}
	l.expect(tail)
	if cause := e.commit(batch); cause != nil {
		next, err := l.await(ctx, e)
		if err != nil {
			return err
		}
		if next.found != tail {
			l.expect(tally{})
			return unavailable(cause)
		}
	}
	l.mu.Lock()
	l.tail, l.durable, l.pending = tail, tail, tally{}
	l.mu.Unlock()
	l.signal(l.written)
	return nil
}

// notNow is why nothing can be done with an engine that has failed: another will come, or none will.
func (l *disk) notNow(failed *engine) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.final != nil {
		return l.final
	}
	return unavailable(failed.cause)
}

// expect notes what an engine may find that is opened after this one.
func (l *disk) expect(tail tally) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = tail
}

// newBatch returns what makes events durable, and how the history stands then.
func (l *disk) newBatch(db *pebble.DB, events []*storage.Event) (*pebble.Batch, tally, error) {
	batch, tail := db.NewBatch(), l.tail
	var key, value []byte
	for _, e := range events {
		if e.Revision != tail.revision+1 {
			return nil, tail, fmt.Errorf("revision %d does not follow %d", e.Revision, tail.revision)
		}
		tail.count(e)
		var sealed []byte
		if e.Record != nil {
			var err error
			if sealed, err = l.codecs.Seal(e.Key, e.Record.Value); err != nil {
				return nil, tail, fmt.Errorf("%w: %w", storage.ErrUnavailable, err) // nothing is written
			}
		}
		if err := putEvent(batch, e, sealed, tail, &key, &value); err != nil {
			return nil, tail, err
		}
	}
	return batch, tail, nil
}

// putEvent adds an event's two entries to batch, with its value as it lies on disk. key and value are scratch space.
func putEvent(batch *pebble.Batch, e *storage.Event, sealed []byte, t tally, key, value *[]byte) error {
	*key = appendVersionKey((*key)[:0], e.Key, e.Revision)
	*value = appendVersion((*value)[:0], e.Record)
	op := batch.SetDeferred(len(*key), len(*value)+len(sealed))
	copy(op.Key, *key)
	n := copy(op.Value, *value)
	copy(op.Value[n:], sealed)
	seal(op.Key, op.Value)
	if err := op.Finish(); err != nil {
		return err
	}
	c := change{tally: t, key: e.Key, deleted: e.Record == nil}
	if e.Previous != nil {
		c.previous = e.Previous.Modified
	}
	*key = appendIndexKey((*key)[:0], e.Revision)
	*value = appendChange((*value)[:0], &c)
	seal(*key, *value)
	return batch.Set(*key, *value, nil)
}

// Close leaves a mark of how far the log reached and releases the directory. An engine
// that has failed is left behind.
func (l *disk) Close() error {
	l.end()
	l.keeping.Wait()
	e := l.engine()
	err := e.failure()
	if err == nil {
		err = l.mark()
	}
	if failed := e.close(); !errors.Is(err, failed) {
		err = errors.Join(err, failed)
	}
	return errors.Join(err, l.lock.Close())
}
