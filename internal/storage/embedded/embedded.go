// Package embedded implements storage.Store for one process. Its log is a directory on the local disk, or in
// memory. The store numbers revisions and groups commits (commit.go), deletes expired keys and compacts the
// history (compactor.go). It must not import anything about Kubernetes objects.
//
// The directory contains LOCK, HEAD and engine/, a Pebble store. Pebble stores each state of a key under
// (key, revision). An index by revision holds the key that changed and the revision of its previous state.
// See codec.go for the encoding, and inspect.go and head.go for the checks at the start.
package embedded

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/logstore"
)

// Options configures a Store.
type Options struct {
	Dir          string        // data directory; "" keeps everything in memory
	CompactAfter time.Duration // age at which history is compacted; 0 means 5 minutes
	HistoryBytes int64         // maximum size of the history; 0 means 256 MiB on disk, 32 MiB in memory
	Logger       *slog.Logger

	// Reserve is the number of bytes of the disk that are reserved for deletions and compaction.
	// 0 means the default of space.reserve.
	Reserve int64
	// DiskUsage returns the number of free bytes of the disk and its size. nil means the file system's values.
	DiskUsage func() (free, size uint64, err error)
	Health    *Health // receives the state of the log; may be nil

	// AcceptLossAfter is the last remaining revision of a store that has lost acknowledged revisions. If the
	// history ends exactly there, Open accepts the loss. New revisions then start above all lost ones. With 0, Open
	// accepts no loss.
	AcceptLossAfter int64

	FS    vfs.FS                               // nil means the operating system's
	Now   func() time.Time                     // nil means time.Now
	After func(time.Duration) <-chan time.Time // timer of the compactor; nil means time.After

	memTable    uint64 // size of Pebble's memtable; 0 means 4 MiB
	recentBytes int64  // storage.ReplicaOptions.RecentBytes

	diskAfter     func(time.Duration) <-chan time.Time // timer of the disk monitor; nil means time.After
	commitTimeout func() <-chan time.Time              // options.commitTimeout
}

// InUseError is returned by Open if another process has opened the directory.
type InUseError struct{ Dir string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("the data directory %s is already in use by another trellis: "+
		"stop that process, or choose another directory", e.Dir)
}

// Open opens the store in o.Dir, or creates it. The error is an *InUseError if another process has opened
// the directory, and an *engine.DamageError if its files are damaged. Both messages describe what to do.
func Open(o Options) (*logstore.Store, error) {
	if o.Dir == "" {
		if o.HistoryBytes <= 0 {
			o.HistoryBytes = 32 << 20
		}
		return logstore.New(newMemory(), o.storeOptions())
	}
	s, _, err := openDirectory(o)
	return s, err
}

// openDirectory opens the store in o.Dir and returns it with its log.
func openDirectory(o Options) (*logstore.Store, *disk, error) {
	l, err := openDisk(withDefaults(o))
	if err != nil {
		return nil, nil, err
	}
	so := o.storeOptions()
	so.LowSpace = l.lowSpace
	s, err := logstore.New(l, so)
	return s, l, err
}

func (o *Options) storeOptions() logstore.Options {
	return logstore.Options{ReplicaOptions: storage.ReplicaOptions{RecentBytes: o.recentBytes},
		CompactAfter: o.CompactAfter, HistoryBytes: o.HistoryBytes, Logger: o.Logger, Now: o.Now, After: o.After,
		CommitTimeout: o.commitTimeout}
}

// withDefaults sets the defaults of unset options.
func withDefaults(o Options) Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Health == nil {
		o.Health = new(Health)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.diskAfter == nil {
		o.diskAfter = time.After
	}
	if o.memTable == 0 {
		o.memTable = 4 << 20
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
		if dir, err = filepath.Abs(o.Dir); err != nil { // locks are identified by path
			return nil, err
		}
	}
	if err := makeDir(fs, dir); err != nil {
		return nil, fmt.Errorf("make the data directory %s: %w", dir, err)
	}
	lock, err := fs.Lock(fs.PathJoin(dir, "LOCK"))
	if err != nil {
		return nil, lockError(dir, err)
	}
	l := newDisk(o, fs, dir, lock)
	err = l.verify()
	if err == nil {
		err = l.current.Open()
	}
	if err != nil {
		_ = l.current.Close() // the first error is more specific
		_ = lock.Close()
		return nil, err
	}
	return l, nil
}

// makeDir creates a directory and missing parents, and syncs their names. It also syncs the name of an
// existing directory, because the process that created it may have been killed before its sync.
func makeDir(fs vfs.FS, dir string) error {
	parent := fs.PathDir(dir)
	if _, err := fs.Stat(dir); errors.Is(err, os.ErrNotExist) && parent != dir {
		if err := makeDir(fs, parent); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	err := syncDir(fs, parent)
	if errors.Is(err, os.ErrPermission) {
		return nil // the parent belongs to another user, so it existed before
	}
	return err
}

// syncDir makes the names in a directory durable.
func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// lockError returns an *InUseError if the lock is held, or else an error with the cause.
func lockError(dir string, err error) error {
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) ||
		strings.Contains(err.Error(), "lock held by current process") {
		return &InUseError{Dir: dir}
	}
	return fmt.Errorf("lock the data directory %s: %w", dir, err)
}
