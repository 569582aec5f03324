package embedded

import (
	"io"
	"strings"
	"sync"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage/embedded/engine"
)

// smallFS is a file system with a limited size.
type smallFS struct {
	vfs.FS
	mu         sync.Mutex
	size       int64
	otherBytes int64 // used by other programs
	files      map[string]int64
	failures   int

	refused     vfs.DiskWriteCategory // category of files that cannot be created
	compactions int                   // number of files created by compactions
	gate        chan struct{}
	waiting     int
	reported    int64 // free space that usage reports, unless 0
}

func newSmallFS(size int64) *smallFS {
	return &smallFS{FS: vfs.NewCrashableMem(), size: size, files: map[string]int64{}}
}

// usage implements Options.DiskUsage.
func (f *smallFS) usage() (free, size uint64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reported > 0 {
		return uint64(f.reported), uint64(f.size), nil
	}
	return uint64(max(0, f.free())), uint64(f.size), nil
}

func (f *smallFS) free() int64 {
	free := f.size - f.otherBytes
	for _, n := range f.files {
		free -= n
	}
	return free
}

// fill simulates other programs that use all but the given number of free bytes.
func (f *smallFS) fill(free int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.otherBytes += f.free() - free
}

// reportFree makes usage report this number of free bytes.
func (f *smallFS) reportFree(free int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reported = free
}

// holdLogWrites blocks writes of the engine's log until c is closed.
func (f *smallFS) holdLogWrites(c chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gate = c
}

// waitingWrites returns the number of writes that have blocked.
func (f *smallFS) waitingWrites() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waiting
}

// waitAtGate blocks a write of a log while writes are held.
func (f *smallFS) waitAtGate(name string) {
	f.mu.Lock()
	gate := f.gate
	if gate != nil && strings.HasSuffix(name, ".log") {
		f.waiting++
		f.mu.Unlock()
		<-gate
		return
	}
	f.mu.Unlock()
}

// refuseCategory makes the creation of files of a category fail.
func (f *smallFS) refuseCategory(c vfs.DiskWriteCategory) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = c
}

// compacted returns the number of files created by compactions.
func (f *smallFS) compacted() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.compactions
}

// freeBytes returns the number of free bytes.
func (f *smallFS) freeBytes() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.free()
}

// failedWrites returns the number of operations that have failed for lack of space.
func (f *smallFS) failedWrites() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failures
}

// grow makes a file n bytes longer, or returns ENOSPC.
func (f *smallFS) grow(name string, n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n > f.free() {
		f.failures++
		return syscall.ENOSPC
	}
	f.files[name] += n
	return nil
}

func (f *smallFS) move(from, to string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.files[to] = f.files[from]
	delete(f.files, from)
}

func (f *smallFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c != vfs.WriteCategoryUnspecified && c == f.refused {
		f.failures++
		return nil, syscall.ENOSPC
	}
	file, err := f.FS.Create(name, c)
	if err != nil {
		return nil, err
	}
	if c == engine.CompactionFiles {
		f.compactions++
	}
	f.files[name] = 0
	return &smallFile{file, f, name}, nil
}

func (f *smallFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.Remove(from); err != nil {
		return nil, err
	}
	return f.Create(to, c)
}

func (f *smallFS) Rename(from, to string) error {
	if err := f.FS.Rename(from, to); err != nil {
		return err
	}
	f.move(from, to)
	return nil
}

func (f *smallFS) Remove(name string) error {
	if err := f.FS.Remove(name); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.files, name)
	return nil
}

type noLock struct{}

func (noLock) Close() error { return nil }

func (f *smallFS) Lock(string) (io.Closer, error) { return noLock{}, nil }

func (f *smallFS) Unwrap() vfs.FS { return f.FS }

type smallFile struct {
	vfs.File
	fs   *smallFS
	name string
}

func (f *smallFile) Write(p []byte) (int, error) {
	f.fs.waitAtGate(f.name)
	if err := f.fs.grow(f.name, int64(len(p))); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}
