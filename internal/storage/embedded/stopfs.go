package embedded

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// stopFS is the disk as the engine sees it. The engine answers a failed write in
// many ways: by an error, by trying for ever, by a panic that cannot be recovered.
// So it never sees one: the log fails, and the goroutine that asked stays here.
// What it holds is never needed again, for guarded leaves it behind.
type stopFS struct {
	vfs.FS
	log *disk
}

// stop does not return if err is not nil.
func (l *disk) stop(what, name string, err error) {
	if err != nil {
		l.fail(fmt.Errorf("%s %s: %w", what, name, err))
		select {}
	}
}

func (s stopFS) wrap(name string, f vfs.File, err error) (vfs.File, error) {
	s.log.stop("create", name, err)
	return &stopFile{File: f, log: s.log, name: name}, nil
}

func (s stopFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := s.FS.Create(name, c)
	return s.wrap(name, f, err)
}

func (s stopFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := s.FS.ReuseForWrite(from, to, c)
	return s.wrap(to, f, err)
}

func (s stopFS) OpenDir(name string) (vfs.File, error) {
	f, err := s.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return &stopFile{File: f, log: s.log, name: name}, nil
}

func (s stopFS) Rename(from, to string) error {
	s.log.stop("rename", from, s.FS.Rename(from, to))
	return nil
}

func (s stopFS) Unwrap() vfs.FS { return s.FS }

type stopFile struct {
	vfs.File
	log  *disk
	name string
}

func (f *stopFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.log.stop("write", f.name, err)
	return n, nil
}

func (f *stopFile) WriteAt(p []byte, at int64) (int, error) {
	n, err := f.File.WriteAt(p, at)
	f.log.stop("write", f.name, err)
	return n, nil
}

func (f *stopFile) Preallocate(at, length int64) error {
	f.log.stop("reserve room for", f.name, f.File.Preallocate(at, length))
	return nil
}

func (f *stopFile) Sync() error {
	f.log.stop("sync", f.name, f.File.Sync())
	return nil
}

func (f *stopFile) SyncData() error {
	f.log.stop("sync", f.name, f.File.SyncData())
	return nil
}

func (f *stopFile) SyncTo(length int64) (bool, error) {
	full, err := f.File.SyncTo(length)
	f.log.stop("sync", f.name, err)
	return full, nil
}
