package embedded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// disk is the log in a directory.
type disk struct {
	dir    string
	fs     vfs.FS
	lock   io.Closer
	db     *pebble.DB
	logger *slog.Logger

	memTable uint64 // size of the engine's memtables

	// fatal is closed when the engine has said that it cannot go on; cause is why.
	fatal chan struct{}
	once  sync.Once
	cause error

	tail tally // what Append has made durable; its own

	mu      sync.Mutex
	durable tally // a copy of tail for others
	marked  int64 // the revision HEAD speaks of
}

func (l *disk) engineDir() string { return l.fs.PathJoin(l.dir, "engine") }

// start opens the engine.
func (l *disk) start() error {
	err := l.reading("the engine's files", func() (err error) {
		l.db, err = pebble.Open(l.engineDir(), l.tuned())
		return err
	})
	var damage *DamageError
	switch {
	case err == nil || errors.As(err, &damage):
		return err
	case pebble.IsCorruptionError(err), errors.Is(err, fs.ErrNotExist): // it makes a folder that is not there; one of its files is missing
		return l.damage("the engine's files", err)
	}
	return fmt.Errorf("open the data directory %s: %w", l.dir, err)
}

// guarded runs work. The engine may stop for good in the midst of it, holding its
// locks (see engineLogger), so it runs on a goroutine that can be left behind.
func (l *disk) guarded(work func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("the engine panicked: %v", p)
			}
		}()
		done <- work()
	}()
	select {
	case err := <-done:
		return err
	case <-l.fatal:
		return l.cause
	}
}

// damage wraps what was found.
func (l *disk) damage(what string, err error) error {
	return &DamageError{Dir: l.dir, What: what, Err: err}
}

// reading runs work, which reads from the engine, guarded. A panic, which the engine
// prefers to an error in places, is damage.
func (l *disk) reading(what string, work func() error) error {
	if err := l.failure(); err != nil {
		return err
	}
	return l.guarded(func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = l.damage(what, fmt.Errorf("%v", p))
			}
		}()
		return work()
	})
}

// fail notes that the engine is beyond use.
func (l *disk) fail(err error) {
	l.once.Do(func() {
		l.cause = err
		close(l.fatal)
	})
}

// failure is the error that fail noted, or nil.
func (l *disk) failure() error {
	select {
	case <-l.fatal:
		return l.cause
	default:
		return nil
	}
}

// engineLogger passes the engine's words on. The engine takes Fatalf not to
// return: the goroutine that calls it ends there, and the log has failed.
type engineLogger struct{ l *disk }

func (e engineLogger) Infof(format string, args ...any) {
	e.l.logger.Debug("engine: " + fmt.Sprintf(format, args...))
}

func (e engineLogger) Errorf(format string, args ...any) {
	e.l.logger.Warn("engine: " + fmt.Sprintf(format, args...))
}

func (e engineLogger) Fatalf(format string, args ...any) {
	e.l.fail(fmt.Errorf(format, args...))
	select {}
}

// Append writes one batch and waits until it is on disk.
func (l *disk) Append(events []*storage.Event) error {
	if err := l.failure(); err != nil {
		return err
	}
	batch := l.db.NewBatch()
	tail := l.tail
	var key, value []byte
	for _, e := range events {
		if e.Revision != tail.revision+1 {
			return fmt.Errorf("revision %d does not follow %d", e.Revision, tail.revision)
		}
		tail.count(e)
		if err := putEvent(batch, e, tail, &key, &value); err != nil {
			return err
		}
	}
	if err := l.commit(batch); err != nil {
		return err
	}
	l.tail = tail
	l.mu.Lock()
	l.durable = tail
	l.mu.Unlock()
	return nil
}

// putEvent adds an event's two entries to batch. key and value are scratch space.
func putEvent(batch *pebble.Batch, e *storage.Event, t tally, key, value *[]byte) error {
	*key = appendVersionKey((*key)[:0], e.Key, e.Revision)
	*value = appendVersion((*value)[:0], e.Record)
	size := len(*value)
	if e.Record != nil {
		size += len(e.Record.Value)
	}
	op := batch.SetDeferred(len(*key), size)
	copy(op.Key, *key)
	n := copy(op.Value, *value)
	if e.Record != nil {
		copy(op.Value[n:], e.Record.Value)
	}
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

// commit applies batch with a sync. After an error the log has failed: the engine
// may or may not have kept the batch.
func (l *disk) commit(batch *pebble.Batch) error {
	err := l.guarded(func() error {
		if err := l.db.Apply(batch, pebble.Sync); err != nil {
			return err
		}
		return batch.Close()
	})
	if err != nil {
		l.fail(err)
	}
	return err
}

// Close leaves a mark of how far the log reached and releases the directory. After
// a failure the engine is left alone, and the directory stays locked until the
// process ends.
func (l *disk) Close() error {
	if err := l.failure(); err != nil {
		return err
	}
	err := l.mark()
	if e := l.guarded(l.db.Close); e != nil {
		l.fail(e)
		return errors.Join(err, e)
	}
	return errors.Join(err, l.lock.Close())
}
