package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// disk is a log in a directory.
type disk struct {
	engineConfig
	lock   io.Closer
	now    func() time.Time
	space  *space
	health *Health

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
		engineConfig: engineConfig{dir: dir, fs: fs, logger: o.Logger, memTable: o.memTable, after: o.diskAfter},
		lock:         lock, health: o.Health,
		replaced: make(chan struct{}), lowSpace: make(chan struct{}, 1),
		written: make(chan struct{}, 1), rotated: make(chan struct{}, 1), acceptLossAfter: o.AcceptLossAfter,
		now: o.Now, backoff: backoff{now: o.Now},
	}
	l.lifetime, l.end = context.WithCancel(context.Background())
	l.space = newSpace(o, fs, dir)
	l.onNewLog = func() { signal(l.rotated) }
	l.current = newEngine(l.engineConfig)
	return l
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
	signal(l.written)
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
	return unavailable(failed.failure())
}

// unavailable returns the storage.ErrUnavailable of an operation on a failed engine.
func unavailable(cause error) error {
	return fmt.Errorf("%w: %w", storage.ErrUnavailable, cause)
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
		if err := putEvent(batch, e, tail, &key, &value); err != nil {
			return nil, tail, err
		}
	}
	return batch, tail, nil
}

// putEvent adds an event's version and index entry to batch. key and value are scratch buffers.
func putEvent(batch *pebble.Batch, e *storage.Event, t tally, key, value *[]byte) error {
	*key = appendVersionKey((*key)[:0], e.Key, e.Revision)
	*value = appendVersion((*value)[:0], e.Record)
	var object []byte
	if e.Record != nil {
		object = e.Record.Value
	}
	op := batch.SetDeferred(len(*key), len(*value)+len(object))
	copy(op.Key, *key)
	n := copy(op.Value, *value)
	copy(op.Value[n:], object)
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
