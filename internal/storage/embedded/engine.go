package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// engine is one opening of the Pebble store in the directory. Once a write has failed
// it is beyond use: it is fenced off from the disk, and another one takes its place.
type engine struct {
	dir      string // of the log
	fs       vfs.FS
	logger   *slog.Logger
	memTable uint64
	codecs   storage.Codecs
	pause    func(time.Duration) <-chan time.Time

	db    *pebble.DB
	found tally // what was there when it was opened

	// fatal is closed when the engine cannot go on; cause is why.
	fatal chan struct{}
	once  sync.Once
	cause error

	log   atomic.Uint64 // number of the newest log file
	begun func()        // called when another log file has been made

	closing chan struct{} // closed when the engine is to be closed
	fence   fence
	rest    rest
}

func (e *engine) path() string { return e.fs.PathJoin(e.dir, engineDir) }

// open opens the engine.
func (e *engine) open() error {
	err := e.reading("the engine's files", func() (err error) {
		e.db, err = pebble.Open(e.path(), e.tuned())
		return err
	})
	return e.openError(err)
}

// openError explains why the engine does not open.
func (e *engine) openError(err error) error {
	var damage *DamageError
	switch {
	case err == nil || errors.As(err, &damage):
		return err
	case pebble.IsCorruptionError(err), errors.Is(err, fs.ErrNotExist): // it makes a folder that is not there; one of its files is missing
		return e.damage("the engine's files", err)
	}
	return fmt.Errorf("open the data directory %s: %w", e.dir, err)
}

// guarded runs work. The engine may stop for good in the midst of it, holding its
// locks (see engineLogger), so it runs on a goroutine that can be left behind.
func (e *engine) guarded(work func() error) error {
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
	case <-e.fatal:
		return e.cause
	}
}

// damage wraps what was found.
func (e *engine) damage(what string, err error) error {
	return &DamageError{Dir: e.dir, Detail: what, Err: err}
}

// reading runs work, which reads from the engine, guarded. A panic, which the engine
// prefers to an error in places, is damage.
func (e *engine) reading(what string, work func() error) error {
	if err := e.failure(); err != nil {
		return err
	}
	err := e.guarded(func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = e.damage(what, fmt.Errorf("%v", p))
			}
		}()
		return work()
	})
	if err != nil && e.failure() != nil {
		return e.failure() // its files may have been closed under work
	}
	return err
}

// fail notes that the engine is beyond use.
func (e *engine) fail(err error) {
	e.once.Do(func() {
		e.cause = err
		close(e.fatal)
	})
}

// decode returns the record that lies under engine key k, as decodeVersion does.
func (e *engine) decode(k, v []byte) (*storage.Record, error) {
	r, err := decodeVersion(k, v)
	if r != nil {
		r.Value, err = e.codecs.Open(r.Key, r.Value)
	}
	return r, err
}

// failure is the error that fail noted, or nil.
func (e *engine) failure() error {
	select {
	case <-e.fatal:
		return e.cause
	default:
		return nil
	}
}

// commit applies batch with a sync. After an error the engine has failed, and may or
// may not have kept the batch.
func (e *engine) commit(batch *pebble.Batch) error {
	err := e.guarded(func() error {
		if err := e.db.Apply(batch, pebble.Sync); err != nil {
			return err
		}
		return batch.Close()
	})
	if err != nil {
		e.fail(err)
	}
	return err
}

// close ends the engine; where it has failed, it is only fenced off.
func (e *engine) close() error {
	close(e.closing)
	err := e.failure()
	if err == nil && e.db != nil {
		if err = e.guarded(e.db.Close); err == nil {
			return nil
		}
	}
	if err != nil {
		e.fail(err)
		e.fence.shut()
	}
	return err
}

// unavailable is the error for what an engine that has failed cannot do.
func unavailable(cause error) error {
	return fmt.Errorf("%w: %w", storage.ErrUnavailable, cause)
}

// tuned returns the engine's options: small, for the tree above holds all live
// data in memory already and the engine is read at start and for old history.
func (e *engine) tuned() *pebble.Options {
	o := &pebble.Options{
		FS:                 stopFS{e.fs, e},
		Logger:             engineLogger{e},
		FormatMajorVersion: pebble.FormatNewest, // the log's chunks say how far it was synced
		CacheSize:          1 << 20,
		MemTableSize:       e.memTable,
		MaxOpenFiles:       256,
		// An L0 file is one flush; compacting a little early keeps the start short.
		L0CompactionThreshold: 4,
		EventListener: &pebble.EventListener{
			// A flush that fails is tried again at once and forever, and commits wait
			// for it. The goroutine ends here instead, and commits fail. A compaction
			// can be done later.
			BackgroundError: func(err error) {
				if errors.Is(err, errCompaction) {
					e.logger.Warn("the engine could not compact its files", "err", err)
					return
				}
				e.fail(err)
				select {}
			},
			// The folder has been synced by now, so that HEAD may name the file.
			WALCreated: func(i pebble.WALCreateInfo) {
				if i.Err == nil {
					e.log.Store(uint64(i.FileNum))
					e.begun()
				}
			},
			// Who reads is told by an error; the engine's own choice is to stop.
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				e.logger.Error("the engine found damaged data", "dir", e.dir, "file", i.Path, "err", i.Details)
			},
		},
	}
	for i := range o.Levels {
		o.Levels[i].BlockSize = 64 << 10 // read mostly in sequence
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionFastest })
	return o
}

// engineLogger passes the engine's words on. The engine takes Fatalf not to
// return: the goroutine that calls it ends there, and the engine has failed.
type engineLogger struct{ e *engine }

func (l engineLogger) Infof(format string, args ...any) {
	l.e.logger.Debug("engine: " + fmt.Sprintf(format, args...))
}

func (l engineLogger) Errorf(format string, args ...any) {
	l.e.logger.Warn("engine: " + fmt.Sprintf(format, args...))
}

func (l engineLogger) Fatalf(format string, args ...any) {
	l.e.fail(fmt.Errorf(format, args...))
	select {}
}
