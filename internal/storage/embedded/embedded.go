// Package embedded is the log on one machine's disk, kept in a directory, and
// its twin that keeps everything in memory.
//
// The directory holds LOCK, HEAD and engine/, a Pebble store. There each state
// of a key lies under (key, revision), and an index by revision says which key
// changed and what it was before. See codec.go for the bytes.
package embedded

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Options say where and how the log is kept.
type Options struct {
	Dir          string        // "" keeps everything in memory
	CompactAfter time.Duration // how long history is kept; 0: 5 minutes
	HistoryBytes int64         // how much of it is kept at most; 0: 256 MiB on disk, 32 MiB in memory
	Logger       *slog.Logger

	FS    vfs.FS                               // nil: the operating system's
	Now   func() time.Time                     // nil: time.Now
	After func(time.Duration) <-chan time.Time // nil: time.After
}

// InUseError says that a process has the directory open.
type InUseError struct{ Dir string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("the data directory %s is already in use by another trellis: stop that one first, or choose another directory", e.Dir)
}

// DamageError says that what lies on disk is not what was written there. Nothing
// of it is served.
type DamageError struct {
	Dir  string
	What string
	Err  error // the engine's own words; may be nil
}

func (e *DamageError) Error() string {
	text := "the data in " + e.Dir + " is damaged: " + e.What
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text + "; nothing was changed. Check the disk, keep a copy of the directory, and restore it from a backup, or start with an empty one"
}

func (e *DamageError) Unwrap() error { return e.Err }

// Open opens or makes the store in o.Dir. A directory that another process has
// open (*InUseError), or that is damaged (*DamageError), is an error that says
// what to do.
func Open(o Options) (*storage.Store, error) {
	o = quiet(o)
	so := storage.Options{
		CompactAfter: o.CompactAfter, HistoryBytes: o.HistoryBytes,
		Logger: o.Logger, Now: o.Now, After: o.After,
	}
	if o.Dir == "" {
		if so.HistoryBytes <= 0 {
			so.HistoryBytes = 32 << 20
		}
		return storage.New(newMemory(), so)
	}
	log, err := openDisk(o)
	if err != nil {
		return nil, err
	}
	return storage.New(log, so)
}

// quiet gives o a logger.
func quiet(o Options) Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// openDisk locks the directory and opens the engine in it.
func openDisk(o Options) (_ *disk, err error) {
	fs := o.FS
	if fs == nil {
		fs = vfs.Default
	}
	dir := o.Dir
	if fs == vfs.Default {
		if dir, err = filepath.Abs(o.Dir); err != nil { // a lock goes by its name
			return nil, err
		}
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	lock, err := fs.Lock(fs.PathJoin(dir, "LOCK"))
	if err != nil {
		return nil, lockError(dir, err)
	}
	l := &disk{dir: dir, fs: fs, lock: lock, logger: o.Logger, fatal: make(chan struct{})}
	if err := l.start(); err != nil {
		_ = lock.Close() // nothing was written
		return nil, err
	}
	return l, nil
}

// lockError tells a lock that is held from one that cannot be taken.
func lockError(dir string, err error) error {
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) || errors.Is(err, io.ErrNoProgress) {
		return &InUseError{Dir: dir}
	}
	return fmt.Errorf("lock the data directory %s: %w", dir, err)
}

// tuned returns the engine's options: small, for the tree above holds all live
// data in memory already and the engine is read at start and for old history.
func (l *disk) tuned() *pebble.Options {
	o := &pebble.Options{
		FS:                 l.fs,
		Logger:             engineLogger{l},
		FormatMajorVersion: pebble.FormatNewest, // the log's chunks say how far it was synced
		CacheSize:          1 << 20,
		MemTableSize:       4 << 20,
		MaxOpenFiles:       256,
		// An L0 file is one flush; compacting a little early keeps the start short.
		L0CompactionThreshold: 4,
	}
	for i := range o.Levels {
		o.Levels[i].BlockSize = 64 << 10 // read mostly in sequence
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionFastest })
	return o
}
