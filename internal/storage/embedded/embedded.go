// Package embedded is the store of one process: its log lies in a directory on this
// machine's disk, or in memory. It numbers revisions, groups commits (commit.go),
// deletes what has expired and compacts history (janitor.go).
//
// The directory holds LOCK, HEAD and engine/, a Pebble store. There each state
// of a key lies under (key, revision), and an index by revision says which key
// changed and what it was before. See codec.go for the bytes.
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
)

// Options say where and how the log is kept.
type Options struct {
	Dir          string        // "" keeps everything in memory
	CompactAfter time.Duration // how long history is kept; 0: 5 minutes
	HistoryBytes int64         // how much of it is kept at most; 0: 256 MiB on disk, 32 MiB in memory
	Logger       *slog.Logger

	// Reserve is how many bytes of the disk are kept free for what makes room; 0: see reserve.
	Reserve int64
	// DiskUsage says how many bytes of the disk are free, and how many there are; nil: the system's word.
	DiskUsage func() (free, size uint64, err error)
	Health    *Health        // gets to know how the log fares; may be nil
	Codecs    storage.Codecs // of the values on disk

	// AcceptLossAfter opens a store that lacks acknowledged revisions if its history ends exactly here; 0: refuse it.
	// New revisions begin above all that were lost.
	AcceptLossAfter int64

	FS    vfs.FS                               // nil: the operating system's
	Now   func() time.Time                     // nil: time.Now
	After func(time.Duration) <-chan time.Time // nil: time.After

	memTable    uint64 // the engine's memtable; 0: 4 MiB
	recentBytes int64  // storage.ReplicaOptions.RecentBytes

	pause    func(time.Duration) <-chan time.Time // between two looks at the disk; nil: time.After
	patience func() <-chan time.Time              // options.patience
}

// InUseError says that a process has the directory open.
type InUseError struct{ Dir string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("the data directory %s is already in use by another trellis: stop that one first, or choose another directory", e.Dir)
}

// DamageError reports that the files differ from what was written. Nothing of them is served.
type DamageError struct {
	Dir          string
	Detail       string
	Err          error // of the engine; may be nil
	LastRevision int64 // the last revision before the damage, if the store can continue there with AcceptLossAfter
}

func (e *DamageError) Error() string {
	text := "the data in " + e.Dir + " is damaged: " + e.Detail
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	text += "; nothing was changed. Check the disk, keep a copy of the directory, and restore it from a backup, or start with an empty one"
	if e.LastRevision > 0 {
		text += fmt.Sprintf(". To lose all revisions after %d and continue, start once with --accept-data-loss-after=%[1]d", e.LastRevision)
	}
	return text
}

func (e *DamageError) Unwrap() error { return e.Err }

// Open opens or makes the store in o.Dir. A directory that another process has
// open (*InUseError), or that is damaged (*DamageError), is an error that says
// what to do.
func Open(o Options) (*Store, error) {
	o = quiet(o)
	so := options{
		compactAfter: o.CompactAfter, historyBytes: o.HistoryBytes,
		logger: o.Logger, now: o.Now, after: o.After, patience: o.patience,
	}
	so.RecentBytes = o.recentBytes
	if o.Dir == "" {
		if so.historyBytes <= 0 {
			so.historyBytes = 32 << 20
		}
		return newStore(newMemory(), so)
	}
	disk, err := openDisk(o)
	if err != nil {
		return nil, err
	}
	so.tight = disk.tight
	return newStore(disk, so)
}

// quiet gives o what it lacks.
func quiet(o Options) Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Health == nil {
		o.Health = new(Health)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.pause == nil {
		o.pause = time.After
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
		if dir, err = filepath.Abs(o.Dir); err != nil { // a lock goes by its name
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
		err = l.current.open()
	}
	if err != nil {
		_ = l.current.close() // the first error says more
		_ = lock.Close()
		return nil, err
	}
	return l, nil
}

// makeDir makes a directory and its name durable, and those of its parents that
// it makes. The name is synced even if it was there: whoever made it may have been
// killed before it could.
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
		return nil // not ours: it was there before
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

// lockError tells a lock that is held from one that cannot be taken.
func lockError(dir string, err error) error {
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) || strings.Contains(err.Error(), "lock held by current process") {
		return &InUseError{Dir: dir}
	}
	return fmt.Errorf("lock the data directory %s: %w", dir, err)
}
