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
	"github.com/trellis-k8s/trellis/internal/storage/embedded/engine"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/format"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/logstore"
)

// disk is a log in a directory.
type disk struct {
	engine.Config
	lock   io.Closer
	now    func() time.Time
	space  *space
	health *Health

	tail format.Tally // totals of the durable history; only Append uses them

	mu       sync.Mutex
	current  *engine.Engine
	replaced chan struct{} // closed when current or finalErr changes, and replaced by a new channel
	finalErr error         // permanent error, after which the disk opens no other engine
	durable  format.Tally  // copy of tail, guarded by mu
	pending  format.Tally  // value of tail after the running Append, if it succeeds

	written         chan struct{} // receives after a commit that is not in HEAD yet
	rotated         chan struct{} // receives when the engine has created another log file
	headMu          sync.Mutex    // held while HEAD is written
	head            format.Head   // content of HEAD
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
		Config: engine.Config{Dir: dir, FS: fs, Logger: o.Logger, MemTable: o.memTable, After: o.diskAfter},
		lock:   lock, health: o.Health,
		replaced: make(chan struct{}), lowSpace: make(chan struct{}, 1),
		written: make(chan struct{}, 1), rotated: make(chan struct{}, 1), acceptLossAfter: o.AcceptLossAfter,
		now: o.Now, backoff: backoff{now: o.Now},
	}
	l.lifetime, l.end = context.WithCancel(context.Background())
	l.space = newSpace(o, fs, dir)
	l.OnNewLog = func() { notify(l.rotated) }
	l.current = engine.New(l.Config)
	return l
}

// engine returns the current engine, which may have failed.
func (l *disk) engine() *engine.Engine {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// damage returns a *DamageError for the directory.
func (l *disk) damage(detail string, err error) error {
	return &engine.DamageError{Dir: l.Dir, Detail: detail, Err: err}
}

// Load implements log. It compares the records with the index, and the end of the index with HEAD.
func (l *disk) Load(add func(*storage.Record) error) (logstore.Extent, error) {
	e := l.current
	if err := e.Read("the engine's files", e.Prepare); err != nil {
		return logstore.Extent{}, err
	}
	if l.acceptedDamage != nil {
		if err := e.Read("the engine's files", func() error { return e.Restart(l.survey.next()) }); err != nil {
			return logstore.Extent{}, err
		}
	}
	oldest, newest, err := e.Load(add)
	if err != nil {
		return logstore.Extent{}, err
	}
	if err := l.checkHead(newest.Tally); err != nil {
		return logstore.Extent{}, err
	}
	l.warn(newest.Revision)
	l.tail, l.durable = newest.Tally, newest.Tally
	l.checkSpace()
	l.background.Go(l.monitor)
	l.background.Go(l.headLoop)
	return logstore.Extent{Revision: newest.Revision, Oldest: oldest.Revision, Bytes: newest.Bytes - oldest.Bytes}, nil
}

// Append implements log. It writes one synced batch. If the engine fails meanwhile, Append waits for the next
// engine, whose content shows whether the batch was written.
func (l *disk) Append(ctx context.Context, events []*storage.Event) error {
	if err := l.admit(events); err != nil {
		return err
	}
	e := l.engine()
	if e.Failure() != nil {
		return l.unavailableError(e)
	}
	batch, tail, err := l.newBatch(e.DB, events)
	if err != nil {
		return err
	}
	l.setPending(tail)
	if cause := e.Commit(batch); cause != nil {
		next, err := l.await(ctx, e)
		if err != nil {
			return err
		}
		if next.Found != tail {
			l.setPending(format.Tally{})
			return unavailable(cause)
		}
	}
	l.mu.Lock()
	l.tail, l.durable, l.pending = tail, tail, format.Tally{}
	l.mu.Unlock()
	notify(l.written)
	return nil
}

// unavailableError returns the error of an operation on a failed engine: the permanent error, or else an
// ErrUnavailable until the engine is replaced.
func (l *disk) unavailableError(failed *engine.Engine) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.finalErr != nil {
		return l.finalErr
	}
	return unavailable(failed.Failure())
}

// unavailable returns the storage.ErrUnavailable of an operation on a failed engine.
func unavailable(cause error) error {
	return fmt.Errorf("%w: %w", storage.ErrUnavailable, cause)
}

// setPending records the totals that the next engine finds if the running Append succeeds.
func (l *disk) setPending(tail format.Tally) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = tail
}

// newBatch returns a batch that makes events durable, and the totals after it.
func (l *disk) newBatch(db *pebble.DB, events []*storage.Event) (*pebble.Batch, format.Tally, error) {
	batch, tail := db.NewBatch(), l.tail
	var key, value []byte
	for _, e := range events {
		if e.Revision != tail.Revision+1 {
			return nil, tail, fmt.Errorf("revision %d does not follow revision %d", e.Revision, tail.Revision)
		}
		tail.Count(e)
		if err := putEvent(batch, e, tail, &key, &value); err != nil {
			return nil, tail, err
		}
	}
	return batch, tail, nil
}

// putEvent adds an event's version and index entry to batch. key and value are scratch buffers.
func putEvent(batch *pebble.Batch, e *storage.Event, t format.Tally, key, value *[]byte) error {
	*key = format.AppendVersionKey((*key)[:0], e.Key, e.Revision)
	*value = format.AppendVersion((*value)[:0], e.Record)
	var object []byte
	if e.Record != nil {
		object = e.Record.Value
	}
	op := batch.SetDeferred(len(*key), len(*value)+len(object))
	copy(op.Key, *key)
	n := copy(op.Value, *value)
	copy(op.Value[n:], object)
	format.Seal(op.Key, op.Value)
	if err := op.Finish(); err != nil {
		return err
	}
	c := format.Change{Tally: t, Key: e.Key, Deleted: e.Record == nil}
	if e.Previous != nil {
		c.Previous = e.Previous.Modified
	}
	*key = format.AppendIndexKey((*key)[:0], e.Revision)
	*value = format.AppendChange((*value)[:0], &c)
	format.Seal(*key, *value)
	return batch.Set(*key, *value, nil)
}

// Close implements log. It writes HEAD and unlocks the directory. A failed engine is abandoned.
func (l *disk) Close() error {
	l.end()
	l.background.Wait()
	e := l.engine()
	err := e.Failure()
	if err == nil {
		err = l.writeHead()
	}
	if failed := e.Close(); !errors.Is(err, failed) {
		err = errors.Join(err, failed)
	}
	return errors.Join(err, l.lock.Close())
}
