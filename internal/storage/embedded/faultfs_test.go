package embedded

import (
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

var errDisk = errors.New("the disk is gone")

// faultFS is a disk that forgets and fails on cue.
type faultFS struct {
	vfs.FS
	forget func(path string, dir bool) bool // syncs that are not carried out
	ops    atomic.Int64                     // writing operations so far
	failAt atomic.Int64                     // the operation that fails; 0: none
	sticky atomic.Bool                      // so do all later ones
	dead   atomic.Bool                      // the process was killed: nothing has an effect any more
}

// write counts a writing operation and says whether it fails.
func (f *faultFS) write() error {
	n := f.ops.Add(1)
	at := f.failAt.Load()
	if f.dead.Load() || at > 0 && (n == at || f.sticky.Load() && n > at) {
		return errDisk
	}
	return nil
}

func (f *faultFS) file(name string, dir bool, file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &faultFile{File: file, fs: f, name: name, dir: dir}, nil
}

func (f *faultFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.write(); err != nil {
		return nil, err
	}
	file, err := f.FS.Create(name, c)
	return f.file(name, false, file, err)
}

func (f *faultFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.write(); err != nil {
		return nil, err
	}
	file, err := f.FS.ReuseForWrite(from, to, c)
	return f.file(to, false, file, err)
}

func (f *faultFS) OpenDir(name string) (vfs.File, error) {
	file, err := f.FS.OpenDir(name)
	return f.file(name, true, file, err)
}

func (f *faultFS) Rename(from, to string) error {
	if err := f.write(); err != nil {
		return err
	}
	return f.FS.Rename(from, to)
}

func (f *faultFS) Remove(name string) error {
	if err := f.write(); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

// Lock is one that goes with the process.
func (f *faultFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

func (f *faultFS) Unwrap() vfs.FS { return f.FS }

type faultFile struct {
	vfs.File
	fs   *faultFS
	name string
	dir  bool
}

func (f *faultFile) Write(p []byte) (int, error) {
	if err := f.fs.write(); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

func (f *faultFile) Sync() error {
	if err := f.fs.write(); err != nil {
		return err
	}
	if f.fs.forget != nil && f.fs.forget(f.name, f.dir) {
		return nil
	}
	return f.File.Sync()
}

func (f *faultFile) SyncData() error { return f.Sync() }

func (f *faultFile) SyncTo(int64) (bool, error) { return true, f.Sync() }

// crash returns what a power failure leaves of fs: what was synced, and of the
// rest some files and blocks, torn at sectors.
func crash(t testing.TB, fs *vfs.MemFS, percent int, r *rand.Rand) *vfs.MemFS {
	t.Helper()
	clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: r})
	if percent == 0 {
		return clone
	}
	// What is synced by now may not have been when clone was made, but not the
	// other way round.
	tear(t, clone, fs.CrashClone(vfs.CrashCloneCfg{}), "", r)
	return clone.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: r})
}

const sector = 512

// tear blanks sectors of the files below path that lie beyond what is synced.
func tear(t testing.TB, fs, synced *vfs.MemFS, path string, r *rand.Rand) {
	names, err := fs.List("/" + path)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		name = strings.TrimPrefix(path+"/"+name, "/")
		if info, err := fs.Stat("/" + name); err != nil {
			t.Fatal(err)
		} else if info.IsDir() {
			tear(t, fs, synced, name, r)
			continue
		}
		data, err := fs.UnsafeGetFileDataBuffer("/" + name)
		if err != nil {
			t.Fatal(err)
		}
		safe, err := synced.UnsafeGetFileDataBuffer("/" + name)
		if err != nil {
			safe = nil // not synced at all
		}
		for at := (len(safe) + sector - 1) / sector * sector; at < len(data); at += sector {
			if r.IntN(20) == 0 {
				clear(data[at:min(at+sector, len(data))])
			}
		}
	}
}
