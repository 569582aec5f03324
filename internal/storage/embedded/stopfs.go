package embedded

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// stopFS is the disk as an engine sees it. The engine answers a failed write in
// many ways: by an error, by trying for ever, by a panic that cannot be recovered.
// So it never sees one: the engine has failed, and the goroutine that asked stays here.
// What it holds is never needed again, for guarded leaves it behind. The exception are
// the files that a compaction makes: the engine can do without them.
type stopFS struct {
	vfs.FS
	engine *engine
}

// fence keeps an engine that has failed off the disk, where another one is at work.
type fence struct {
	uses  sync.RWMutex // held for reading by each use of the disk
	mu    sync.Mutex
	files map[*stopFile]struct{} // that are open
}

// enter begins a use of the disk. It does not return once the engine has failed.
func (e *engine) enter() {
	e.fence.uses.RLock()
	if e.failure() != nil {
		e.fence.uses.RUnlock()
		select {}
	}
}

// leave ends it.
func (e *engine) leave() { e.fence.uses.RUnlock() }

// stop does not return if err is not nil.
func (e *engine) stop(what, name string, err error) {
	if err != nil {
		e.fail(fmt.Errorf("%s %s: %w", what, name, err))
		select {}
	}
}

// shut waits for the uses by an engine that has failed to end, and closes its files,
// so that those which are deleted take no more room.
func (f *fence) shut() {
	f.uses.Lock() // whoever comes later sees that the engine has failed
	defer f.uses.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	for file := range f.files {
		_ = file.File.Close() // of no use any more
	}
	f.files = nil
}

// add notes an open file.
func (f *fence) add(file *stopFile) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.files == nil {
		f.files = map[*stopFile]struct{}{}
	}
	f.files[file] = struct{}{}
}

// take says whether a file is still to be closed, and leaves that to the caller.
func (f *fence) take(file *stopFile) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, open := f.files[file]
	delete(f.files, file)
	return open
}

// errCompaction marks what went wrong with a compaction and nothing else.
var errCompaction = errors.New("compaction")

// compactionFiles is what the engine calls the files that a compaction writes.
const compactionFiles vfs.DiskWriteCategory = "pebble-compaction"

// restFor is how long the engine does not compact after that has failed: it would try
// again at once, and fill the disk each time.
const restFor = 30 * time.Second

// rest is the time between two attempts to compact.
type rest struct {
	mu    sync.Mutex
	until <-chan time.Time
}

// begin starts the rest.
func (r *rest) begin(until <-chan time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = until
}

// end waits for the end of the rest, or of the engine.
func (r *rest) end(closing <-chan struct{}) {
	r.mu.Lock()
	until := r.until
	r.until = nil
	r.mu.Unlock()
	if until == nil {
		return
	}
	select {
	case <-until:
	case <-closing:
	}
}

// compacted returns the error of a compaction, after which it rests.
func (e *engine) compacted(err error) error {
	if err == nil {
		return nil
	}
	e.rest.begin(e.pause(restFor))
	return fmt.Errorf("%w: %w", errCompaction, err)
}

func (s stopFS) file(name string, f vfs.File) *stopFile {
	file := &stopFile{File: f, engine: s.engine, name: name}
	s.engine.fence.add(file)
	return file
}

func (s stopFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	spare := c == compactionFiles
	if spare {
		s.engine.rest.end(s.engine.closing)
	}
	s.engine.enter()
	f, err := s.FS.Create(name, c)
	s.engine.leave()
	if spare && err != nil {
		return nil, s.engine.compacted(err)
	}
	s.engine.stop("create", name, err)
	file := s.file(name, f)
	file.spare = spare
	return file, nil
}

func (s stopFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	s.engine.enter()
	f, err := s.FS.ReuseForWrite(from, to, c)
	s.engine.leave()
	s.engine.stop("create", to, err)
	return s.file(to, f), nil
}

func (s stopFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	s.engine.enter()
	defer s.engine.leave()
	f, err := s.FS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	return s.file(name, f), nil
}

func (s stopFS) OpenDir(name string) (vfs.File, error) {
	s.engine.enter()
	defer s.engine.leave()
	f, err := s.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return s.file(name, f), nil
}

func (s stopFS) Rename(from, to string) error {
	s.engine.enter()
	err := s.FS.Rename(from, to)
	s.engine.leave()
	s.engine.stop("rename", from, err)
	return nil
}

// Remove may fail: what is left behind is removed at the next start.
func (s stopFS) Remove(name string) error {
	s.engine.enter()
	defer s.engine.leave()
	return s.FS.Remove(name)
}

// Lock does nothing: the log has locked the whole directory, and one engine must not
// be kept out by another that has failed.
func (s stopFS) Lock(string) (io.Closer, error) { return unlocked{}, nil }

func (s stopFS) Unwrap() vfs.FS { return s.FS }

type unlocked struct{}

func (unlocked) Close() error { return nil }

type stopFile struct {
	vfs.File
	engine *engine
	name   string
	spare  bool // the engine can do without it
}

// change carries out a change of the file.
func (f *stopFile) change(what string, work func() error) error {
	f.engine.enter()
	err := work()
	f.engine.leave()
	if f.spare {
		return f.engine.compacted(err)
	}
	f.engine.stop(what, f.name, err)
	return nil
}

func (f *stopFile) Read(p []byte) (int, error) {
	f.engine.enter()
	defer f.engine.leave()
	return f.File.Read(p)
}

func (f *stopFile) ReadAt(p []byte, at int64) (int, error) {
	f.engine.enter()
	defer f.engine.leave()
	return f.File.ReadAt(p, at)
}

func (f *stopFile) Stat() (vfs.FileInfo, error) {
	f.engine.enter()
	defer f.engine.leave()
	return f.File.Stat()
}

func (f *stopFile) Prefetch(at, length int64) error {
	f.engine.enter()
	defer f.engine.leave()
	return f.File.Prefetch(at, length)
}

func (f *stopFile) Write(p []byte) (n int, err error) {
	err = f.change("write", func() error {
		n, err = f.File.Write(p)
		return err
	})
	return n, err
}

func (f *stopFile) WriteAt(p []byte, at int64) (n int, err error) {
	err = f.change("write", func() error {
		n, err = f.File.WriteAt(p, at)
		return err
	})
	return n, err
}

func (f *stopFile) Preallocate(at, length int64) error {
	return f.change("reserve room for", func() error { return f.File.Preallocate(at, length) })
}

func (f *stopFile) Sync() error { return f.change("sync", f.File.Sync) }

func (f *stopFile) SyncData() error { return f.change("sync", f.File.SyncData) }

func (f *stopFile) SyncTo(length int64) (full bool, err error) {
	err = f.change("sync", func() error {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}

func (f *stopFile) Close() error {
	f.engine.enter()
	defer f.engine.leave()
	if !f.engine.fence.take(f) {
		return nil
	}
	return f.File.Close()
}
