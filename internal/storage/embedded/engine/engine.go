// Package engine stores the records of an embedded store and their history in Pebble. An Engine fails at the first
// failed write, and another Engine then replaces it. Nothing here knows the other files of a data directory.
package engine

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

	"github.com/trellis-k8s/trellis/internal/storage/embedded/format"
)

// Engine is one opening of the Pebble store in the directory. A failed write makes it unusable. Its barrier then
// blocks its use of the disk, and another engine replaces it.
type Engine struct {
	Config
	DB    *pebble.DB
	Found format.Tally // totals when it was opened

	// fatal is closed when the engine has failed with cause.
	fatal chan struct{}
	once  sync.Once
	cause error

	newest atomic.Uint64 // number of the newest log file

	closing           chan struct{} // closed by close
	barrier           barrier
	compactionBackoff compactionBackoff
}

// Config configures an engine.
type Config struct {
	Dir      string // the log's directory, which contains Pebble's
	FS       vfs.FS
	Logger   *slog.Logger
	MemTable uint64                               // size of Pebble's memtables
	After    func(time.Duration) <-chan time.Time // timer of compactions
	OnNewLog func()                               // called when Pebble has created another log file
}

// New returns an engine that must be opened.
func New(c Config) *Engine {
	return &Engine{Config: c, fatal: make(chan struct{}), closing: make(chan struct{})}
}

func (e *Engine) path() string { return e.FS.PathJoin(e.Dir, Dir) }

// Open opens Pebble.
func (e *Engine) Open() error {
	err := e.Read("the engine's files", func() (err error) {
		e.DB, err = pebble.Open(e.path(), e.pebbleOptions())
		return err
	})
	return e.OpenError(err)
}

// OpenError returns a *DamageError if Pebble cannot be opened because of damaged or missing files.
func (e *Engine) OpenError(err error) error {
	var damage *DamageError
	switch {
	case err == nil || errors.As(err, &damage):
		return err
	case pebble.IsCorruptionError(err), errors.Is(err, fs.ErrNotExist):
		// Pebble creates a missing directory, so ErrNotExist means that one of its files is missing.
		return e.damage("the engine's files", err)
	}
	return fmt.Errorf("open the data directory %s: %w", e.Dir, err)
}

// runDetached runs work on another goroutine. If the engine fails, runDetached abandons that goroutine, which
// may block forever with Pebble's locks held (see engineLogger).
func (e *Engine) runDetached(work func() error) error {
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

// damage returns a *DamageError for the directory.
func (e *Engine) damage(detail string, err error) error {
	return &DamageError{Dir: e.Dir, Detail: detail, Err: err}
}

// Read runs the function work with runDetached. work reads from Pebble, which panics on some damaged files. read
// converts a panic to a DamageError. The argument what names the damaged part in its message.
func (e *Engine) Read(what string, work func() error) error {
	if err := e.Failure(); err != nil {
		return err
	}
	err := e.runDetached(func() (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = e.damage(what, fmt.Errorf("%v", p))
			}
		}()
		return work()
	})
	if err != nil && e.Failure() != nil {
		return e.Failure() // the barrier may have closed the files that work used
	}
	return err
}

// Fail marks the engine as failed. Only the first call has an effect.
func (e *Engine) Fail(err error) {
	e.once.Do(func() {
		e.cause = err
		close(e.fatal)
	})
}

// NewestLog returns the number of the newest log file.
func (e *Engine) NewestLog() uint64 { return e.newest.Load() }

// Failed returns a channel that is closed when the engine has failed.
func (e *Engine) Failed() <-chan struct{} { return e.fatal }

// Failure returns the cause passed to Fail, or nil.
func (e *Engine) Failure() error {
	select {
	case <-e.fatal:
		return e.cause
	default:
		return nil
	}
}

// Commit applies batch with a sync. If it returns an error, the engine has failed, and the batch may have been
// written.
func (e *Engine) Commit(batch *pebble.Batch) error {
	err := e.runDetached(func() error {
		if err := e.DB.Apply(batch, pebble.Sync); err != nil {
			return err
		}
		return batch.Close()
	})
	if err != nil {
		e.Fail(err)
	}
	return err
}

// Close closes Pebble. If the engine has failed, close only shuts its barrier.
func (e *Engine) Close() error {
	close(e.closing)
	err := e.Failure()
	if err == nil && e.DB != nil {
		if err = e.runDetached(e.DB.Close); err == nil {
			return nil
		}
	}
	if err != nil {
		e.Fail(err)
		e.Shut()
	}
	return err
}

// pebbleOptions returns Pebble's options. Caches are small: all live data are in the tree in memory, and Pebble
// is read only at the start and for old history.
func (e *Engine) pebbleOptions() *pebble.Options {
	o := &pebble.Options{
		FS:                 barrierFS{e.FS, e},
		Logger:             engineLogger{e},
		FormatMajorVersion: pebble.FormatNewest, // log chunks of this format record how far the log was synced
		CacheSize:          1 << 20,
		MemTableSize:       e.MemTable,
		MaxOpenFiles:       256,
		// A flush writes one L0 file. A threshold slightly below the default makes starts faster.
		L0CompactionThreshold: 4,
		EventListener: &pebble.EventListener{
			// Pebble would retry a failed flush immediately and forever while commits wait. Blocking this goroutine
			// prevents that, and the commits fail. A failed compaction can be retried later.
			BackgroundError: func(err error) {
				if errors.Is(err, errCompaction) {
					e.Logger.Warn("cannot compact the engine's files", "err", err)
					return
				}
				e.Fail(err)
				select {}
			},
			// The directory has been synced, so HEAD may refer to the file.
			WALCreated: func(i pebble.WALCreateInfo) {
				if i.Err == nil {
					e.newest.Store(uint64(i.FileNum))
					e.OnNewLog()
				}
			},
			// By default, Pebble exits the process. Here only the reader gets an error.
			DataCorruption: func(i pebble.DataCorruptionInfo) {
				e.Logger.Error("the engine has found damaged data", "dir", e.Dir, "file", i.Path, "err", i.Details)
			},
		},
	}
	for i := range o.Levels {
		o.Levels[i].BlockSize = 64 << 10 // reads are mostly sequential
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionFastest })
	return o
}

// engineLogger forwards Pebble's log messages. Pebble expects Fatalf not to return, so Fatalf marks the engine
// as failed and blocks the calling goroutine forever.
type engineLogger struct{ e *Engine }

func (l engineLogger) Infof(format string, args ...any) {
	l.e.Logger.Debug("engine: " + fmt.Sprintf(format, args...))
}

func (l engineLogger) Errorf(format string, args ...any) {
	l.e.Logger.Warn("engine: " + fmt.Sprintf(format, args...))
}

func (l engineLogger) Fatalf(format string, args ...any) {
	l.e.Fail(fmt.Errorf(format, args...))
	select {}
}
