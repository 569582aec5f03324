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

// disk is a log in a directory.
type disk struct {
	dir      string
	fs       vfs.FS
	lock     io.Closer
	logger   *slog.Logger
	memTable uint64 // size of the engine's memtables
	codecs   storage.Codecs
	after    func(time.Duration) <-chan time.Time
	now      func() time.Time
	space    *space
	health   *Health

	tail tally // totals of the durable history; only Append uses them

	mu       sync.Mutex
	current  *engine
	replaced chan struct{} // closed when current or finalErr changes, and replaced by a new channel
	finalErr error         // permanent error, after which the disk opens no other engine
	durable  tally         // copy of tail, guarded by mu
	pending  tally         // value of tail after the running Append, if it succeeds

	written         chan struct{} // receives after a commit that is not in HEAD yet
	rotated         chan struct{} // receives when the engine has created another log file
	headMu          sync.Mutex    // held while HEAD is written
	head            head          // content of HEAD
	acceptLossAfter int64         // Options.AcceptLossAfter
	survey          *survey       // state of the directory before it was opened
	acceptedDamage  error         // damage accepted by acceptLossAfter, or nil

	lowSpace      chan struct{} // options.lowSpace
	compacted     atomic.Int64  // revision of the last call of Compact
	fileCompactor fileCompactor
	backoff       backoff

	lifetime   context.Context // cancelled by Close
	end        context.CancelFunc
	background sync.WaitGroup
}

func newDisk(o Options, fs vfs.FS, dir string, lock io.Closer) *disk {
	l := &disk{
		dir: dir, fs: fs, lock: lock, logger: o.Logger, memTable: o.memTable, codecs: o.Codecs,
		after: o.diskAfter, health: o.Health,
		replaced: make(chan struct{}), lowSpace: make(chan struct{}, 1),
		written: make(chan struct{}, 1), rotated: make(chan struct{}, 1), acceptLossAfter: o.AcceptLossAfter,
		now: o.Now, backoff: backoff{now: o.Now},
	}
	l.lifetime, l.end = context.WithCancel(context.Background())
	l.space = newSpace(o, fs, dir)
	l.current = l.newEngine()
	return l
}

func (l *disk) newEngine() *engine {
	return &engine{
		dir: l.dir, fs: l.fs, logger: l.logger, memTable: l.memTable, codecs: l.codecs, after: l.after,
		onNewLog: func() { l.signal(l.rotated) },
		fatal:    make(chan struct{}), closing: make(chan struct{}),
	}
}

// engine returns the current engine, which may have failed.
func (l *disk) engine() *engine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// damage returns a *DamageError for the directory.
func (l *disk) damage(detail string, err error) error {
	return &DamageError{Dir: l.dir, Detail: detail, Err: err}
}

// Load implements log. It compares the records with the index, and the end of the index with HEAD.
func (l *disk) Load(add func(*storage.Record) error) (extent, error) {
	e := l.current
	if err := e.read("the engine's files", e.prepare); err != nil {
		return extent{}, err
	}
	if l.acceptedDamage != nil {
		if err := e.read("the engine's files", func() error { return e.restart(l.survey.next()) }); err != nil {
			return extent{}, err
		}
	}
	oldest, newest, err := e.load(add)
	if err != nil {
		return extent{}, err
	}
	if err := l.checkHead(newest.tally); err != nil {
		return extent{}, err
	}
	l.warn(newest.revision)
	l.tail, l.durable = newest.tally, newest.tally
	l.checkSpace()
	l.background.Go(l.monitor)
	l.background.Go(l.headLoop)
	return extent{newest.revision, oldest.revision, newest.bytes - oldest.bytes}, nil
}

// Append implements log. It writes one synced batch. If the engine fails meanwhile, Append waits for the next
// engine, whose content shows whether the batch was written.
func (l *disk) Append(ctx context.Context, events []*storage.Event) error {
	if err := l.admit(events); err != nil {
		return err
	}
	e := l.engine()
	if e.failure() != nil {
		return l.unavailableError(e)
	}
	batch, tail, err := l.newBatch(e.db, events)
	if err != nil {
		return err
	}
	l.setPending(tail)
	if cause := e.commit(batch); cause != nil {
		next, err := l.await(ctx, e)
		if err != nil {
			return err
		}
		if next.found != tail {
			l.setPending(tally{})
			return unavailable(cause)
		}
	}
	l.mu.Lock()
	l.tail, l.durable, l.pending = tail, tail, tally{}
	l.mu.Unlock()
	l.signal(l.written)
	return nil
}

// unavailableError returns the error of an operation on a failed engine: the permanent error, or else an
// ErrUnavailable until the engine is replaced.
func (l *disk) unavailableError(failed *engine) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.finalErr != nil {
		return l.finalErr
	}
	return unavailable(failed.cause)
}

// setPending records the totals that the next engine finds if the running Append succeeds.
func (l *disk) setPending(tail tally) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = tail
}

// newBatch returns a batch that makes events durable, and the totals after it.
func (l *disk) newBatch(db *pebble.DB, events []*storage.Event) (*pebble.Batch, tally, error) {
	batch, tail := db.NewBatch(), l.tail
	var key, value []byte
	for _, e := range events {
		if e.Revision != tail.revision+1 {
			return nil, tail, fmt.Errorf("revision %d does not follow revision %d", e.Revision, tail.revision)
		}
		tail.count(e)
		var sealed []byte
		if e.Record != nil {
			var err error
			if sealed, err = l.codecs.Seal(e.Key, e.Record.Value); err != nil {
				return nil, tail, fmt.Errorf("%w: %w", storage.ErrUnavailable, err) // nothing has been written
			}
		}
		if err := putEvent(batch, e, sealed, tail, &key, &value); err != nil {
			return nil, tail, err
		}
	}
	return batch, tail, nil
}

// putEvent adds an event's version and index entry to batch. sealed is the value as encoded by the codecs. key
// and value are scratch buffers.
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

// Close implements log. It writes HEAD and unlocks the directory. A failed engine is abandoned.
func (l *disk) Close() error {
	l.end()
	l.background.Wait()
	e := l.engine()
	err := e.failure()
	if err == nil {
		err = l.writeHead()
	}
	if failed := e.close(); !errors.Is(err, failed) {
		err = errors.Join(err, failed)
	}
	return errors.Join(err, l.lock.Close())
}
