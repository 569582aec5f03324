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

var errDisk = errors.New("the disk has failed")

// faultFS is a file system that ignores syncs and fails writes on request.
type faultFS struct {
	vfs.FS
	ignoreSync func(path string, dir bool) bool // reports whether to ignore a sync
	ops        atomic.Int64                     // number of writing operations so far
	failAt     atomic.Int64                     // number of the operation that fails; 0 means none
	sticky     atomic.Bool                      // all later operations fail as well
	dead       atomic.Bool                      // the process has been killed: operations have no effect
}

// write counts a writing operation and returns an error if it must fail.
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

// ReuseForWrite does not call the method of vfs.MemFS, which locks a sync.RWMutex for reading twice. It would never
// return if CrashClone requested the lock in between.
func (f *faultFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.write(); err != nil {
		return nil, err
	}
	if err := f.FS.Rename(from, to); err != nil {
		return nil, err
	}
	file, err := f.FS.OpenReadWrite(to, c)
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

// Lock does nothing, because the lock of a killed process does not survive it.
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
	if f.fs.ignoreSync != nil && f.fs.ignoreSync(f.name, f.dir) {
		return nil
	}
	return f.File.Sync()
}

func (f *faultFile) SyncData() error { return f.Sync() }

func (f *faultFile) SyncTo(int64) (bool, error) { return true, f.Sync() }

// TestReuseDuringCrash checks that a faultFS renames log files while another goroutine clones the disk.
func TestReuseDuringCrash(t *testing.T) {
	mem := vfs.NewCrashableMem()
	fs := &faultFS{FS: mem}
	created, err := fs.Create("a", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_ = created.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for range 20000 {
			f, err := fs.ReuseForWrite("a", "a", vfs.WriteCategoryUnspecified)
			if err != nil {
				t.Error(err)
				return
			}
			_ = f.Close()
		}
	}()
	for {
		select {
		case <-ended:
			return
		default:
			mem.CrashClone(vfs.CrashCloneCfg{})
		}
	}
}

// crash returns the disk after a power failure: all synced data, and some of the unsynced files and blocks.
// Unsynced data may be torn at the boundaries of sectors.
func crash(t testing.TB, fs *vfs.MemFS, percent int, r *rand.Rand) *vfs.MemFS {
	t.Helper()
	clone := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: r})
	if percent == 0 {
		return clone
	}
	// The data that are synced now include all data that were synced when clone was made.
	tear(t, clone, fs.CrashClone(vfs.CrashCloneCfg{}), "", r)
	return clone.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: r})
}

const sector = 512

// tear clears sectors beyond the synced part of the files below path.
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
