package engine

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// barrierFS is the file system that an engine uses. Pebble reacts to failed writes in various ways: with an error,
// endless retries, or a panic that cannot be recovered. barrierFS therefore never returns a failed write. It marks
// the engine as failed and blocks the calling goroutine forever. runDetached abandons this goroutine and the locks
// that it holds. Files written by compactions are an exception, because the engine works without them.
type barrierFS struct {
	vfs.FS
	engine *Engine
}

// barrier prevents a failed engine from using the disk, because the next engine uses it.
type barrier struct {
	uses  sync.RWMutex // held for reading during each use of the disk
	mu    sync.Mutex
	files map[*barrierFile]struct{} // open files
}

// enter must be called before each use of the disk. It blocks forever if the engine has failed.
func (e *Engine) enter() {
	e.barrier.uses.RLock()
	if e.Failure() != nil {
		e.barrier.uses.RUnlock()
		select {}
	}
}

// leave must be called after each use of the disk.
func (e *Engine) leave() { e.barrier.uses.RUnlock() }

// stopOnError marks the engine as failed and blocks forever if err is not nil.
func (e *Engine) stopOnError(operation, name string, err error) {
	if err != nil {
		e.Fail(fmt.Errorf("%s %s: %w", operation, name, err))
		select {}
	}
}

// Shut waits for running uses of the disk by a failed engine. It then closes the engine's files. The disk space of
// deleted files becomes free.
func (e *Engine) Shut() {
	b := &e.barrier
	b.uses.Lock() // later calls of enter see that the engine has failed
	defer b.uses.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	for file := range b.files {
		_ = file.File.Close() // no longer needed
	}
	b.files = nil
}

// add registers an open file.
func (b *barrier) add(file *barrierFile) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.files == nil {
		b.files = map[*barrierFile]struct{}{}
	}
	b.files[file] = struct{}{}
}

// remove unregisters a file and reports whether it was still registered. If so, the caller must close the file.
func (b *barrier) remove(file *barrierFile) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, open := b.files[file]
	delete(b.files, file)
	return open
}

// errCompaction marks errors that affect only a compaction.
var errCompaction = errors.New("compaction")

// CompactionFiles is Pebble's category of files written by compactions.
const CompactionFiles vfs.DiskWriteCategory = "pebble-compaction"

// CompactionDelay is the pause after a failed compaction. Without it, Pebble would retry immediately and fill the
// disk each time.
const CompactionDelay = 30 * time.Second

// compactionBackoff delays the next compaction after a failed one.
type compactionBackoff struct {
	mu    sync.Mutex
	until <-chan time.Time
}

// start starts the pause.
func (r *compactionBackoff) start(until <-chan time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = until
}

// wait waits for the end of the pause, or until the engine is closed.
func (r *compactionBackoff) wait(closing <-chan struct{}) {
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

// PauseCompactions delays the next compaction by CompactionDelay.
func (e *Engine) PauseCompactions() { e.compactionBackoff.start(e.After(CompactionDelay)) }

// compactionError wraps the error of a compaction and starts the pause. It returns nil for nil.
func (e *Engine) compactionError(err error) error {
	if err == nil {
		return nil
	}
	e.PauseCompactions()
	return fmt.Errorf("%w: %w", errCompaction, err)
}

func (s barrierFS) file(name string, f vfs.File) *barrierFile {
	file := &barrierFile{File: f, engine: s.engine, name: name}
	s.engine.barrier.add(file)
	return file
}

func (s barrierFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	optional := c == CompactionFiles
	if optional {
		s.engine.compactionBackoff.wait(s.engine.closing)
	}
	s.engine.enter()
	f, err := s.FS.Create(name, c)
	s.engine.leave()
	if optional && err != nil {
		return nil, s.engine.compactionError(err)
	}
	s.engine.stopOnError("create", name, err)
	file := s.file(name, f)
	file.optional = optional
	return file, nil
}

func (s barrierFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	s.engine.enter()
	f, err := s.FS.ReuseForWrite(from, to, c)
	s.engine.leave()
	s.engine.stopOnError("create", to, err)
	return s.file(to, f), nil
}

func (s barrierFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	s.engine.enter()
	defer s.engine.leave()
	f, err := s.FS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	return s.file(name, f), nil
}

func (s barrierFS) OpenDir(name string) (vfs.File, error) {
	s.engine.enter()
	defer s.engine.leave()
	f, err := s.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return s.file(name, f), nil
}

func (s barrierFS) Rename(from, to string) error {
	s.engine.enter()
	err := s.FS.Rename(from, to)
	s.engine.leave()
	s.engine.stopOnError("rename", from, err)
	return nil
}

// Remove may return an error. The next start removes the file instead.
func (s barrierFS) Remove(name string) error {
	s.engine.enter()
	defer s.engine.leave()
	return s.FS.Remove(name)
}

// Lock does nothing. The type disk has locked the whole directory, and a failed engine must not block the next one.
func (s barrierFS) Lock(string) (io.Closer, error) { return unlocked{}, nil }

func (s barrierFS) Unwrap() vfs.FS { return s.FS }

type unlocked struct{}

func (unlocked) Close() error { return nil }

type barrierFile struct {
	vfs.File
	engine   *Engine
	name     string
	optional bool // the engine works without the file
}

// change runs work, which changes the file.
func (f *barrierFile) change(operation string, work func() error) error {
	f.engine.enter()
	err := work()
	f.engine.leave()
	if f.optional {
		return f.engine.compactionError(err)
	}
	f.engine.stopOnError(operation, f.name, err)
	return nil
}

func (f *barrierFile) Read(p []byte) (int, error) {
	f.engine.enter()
	defer f.engine.leave()
	return f.File.Read(p)
}

func (f *barrierFile) ReadAt(p []byte, at int64) (int, error) {
	f.engine.enter()
	defer f.engine.leave()
	return f.File.ReadAt(p, at)
}

func (f *barrierFile) Stat() (vfs.FileInfo, error) {
	f.engine.enter()
	defer f.engine.leave()
	return f.File.Stat()
}

func (f *barrierFile) Prefetch(at, length int64) error {
	f.engine.enter()
	defer f.engine.leave()
	return f.File.Prefetch(at, length)
}

func (f *barrierFile) Write(p []byte) (n int, err error) {
	err = f.change("write", func() error {
		n, err = f.File.Write(p)
		return err
	})
	return n, err
}

func (f *barrierFile) WriteAt(p []byte, at int64) (n int, err error) {
	err = f.change("write", func() error {
		n, err = f.File.WriteAt(p, at)
		return err
	})
	return n, err
}

func (f *barrierFile) Preallocate(at, length int64) error {
	return f.change("preallocate", func() error { return f.File.Preallocate(at, length) })
}

func (f *barrierFile) Sync() error { return f.change("sync", f.File.Sync) }

func (f *barrierFile) SyncData() error { return f.change("sync", f.File.SyncData) }

func (f *barrierFile) SyncTo(length int64) (full bool, err error) {
	err = f.change("sync", func() error {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, err
}

func (f *barrierFile) Close() error {
	f.engine.enter()
	defer f.engine.leave()
	if !f.engine.barrier.remove(f) {
		return nil
	}
	return f.File.Close()
}
