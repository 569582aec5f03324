package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"

	"github.com/trellis-k8s/trellis/internal/storage/embedded/format"
)

// Dir is the name of Pebble's directory in the data directory.
const Dir = "engine"

// LogFile describes a write-ahead log of the engine. The description covers the log up to its end, or up to the
// first part that cannot be decoded.
type LogFile struct {
	Number      uint64
	Name        string // path relative to the data directory
	First, Last int64  // first and last revision in it; 0 means none
	Restart     bool   // its first revision begins a new history (see engine.restart)
	Size        int64  // number of bytes that can be decoded, if end is not nil
	End         error  // error of decoding the rest; nil means that the log ends properly
}

// Torn reports whether a crash can be the cause of the damaged end of the log. Log records contain the offset up to
// which the log had been synced. If a later record covers the damaged place, a crash cannot be the cause.
func (f *LogFile) Torn() bool { return errors.Is(f.End, record.ErrUnexpectedEOF) }

// withoutLogs is a file system that hides an engine's log files.
type withoutLogs struct{ vfs.FS }

func (fs withoutLogs) List(dir string) ([]string, error) {
	all, err := fs.FS.List(dir)
	var names []string
	for _, name := range all {
		if !strings.HasSuffix(name, ".log") {
			names = append(names, name)
		}
	}
	return names, err
}

// EndOfTables returns the last revision that is stored in a table, or 0.
func (e *Engine) EndOfTables() (revision int64, err error) {
	o := e.pebbleOptions()
	o.FS, o.ReadOnly = withoutLogs{o.FS}, true
	if e.DB, err = pebble.Open(e.path(), o); err != nil {
		return 0, err
	}
	it, err := e.DB.NewIter(indexBounds(0))
	if err != nil {
		return 0, err
	}
	if it.Last() {
		var c format.Change
		c, err = e.change(it)
		revision = c.Revision
	}
	return revision, errors.Join(err, it.Error(), it.Close())
}

// ReadLogs reads the engine's logs.
func (e *Engine) ReadLogs() ([]LogFile, error) {
	all, err := wal.Scan(wal.Dir{FS: e.FS, Dirname: e.path()})
	if err != nil {
		return nil, fmt.Errorf("read the logs in %s: %w", e.Dir, err)
	}
	logs := make([]LogFile, 0, len(all))
	for _, one := range all {
		_, name := one.SegmentLocation(0)
		f := LogFile{Number: uint64(one.Num), Name: path.Join(Dir, e.FS.PathBase(name))}
		r := one.OpenForRead()
		err := f.read(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return nil, fmt.Errorf("read %s in %s: %w", f.Name, e.Dir, err)
		}
		logs = append(logs, f)
	}
	return logs, nil
}

// read reads the revisions in a log up to its end, or up to the first part that cannot be decoded.
func (f *LogFile) read(r wal.Reader) error {
	for {
		batch, at, err := r.NextRecord()
		var data []byte
		if err == nil {
			data, err = io.ReadAll(batch)
		}
		if err == nil {
			err = f.add(data)
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			return nil
		case undecodable(err):
			f.Size, f.End = at.Physical, err
			return nil
		default:
			return err
		}
	}
}

// undecodable reports whether err means that a log contains something other than valid records.
func undecodable(err error) bool {
	return errors.Is(err, record.ErrUnexpectedEOF) || errors.Is(err, record.ErrInvalidChunk) ||
		errors.Is(err, record.ErrZeroedChunk) || pebble.IsCorruptionError(err)
}

// add records the revisions in a batch.
func (f *LogFile) add(batch []byte) error {
	cleared := false
	for r := batchrepr.Read(batch); ; {
		kind, key, end, ok, err := r.Next()
		if err != nil || !ok {
			return err
		}
		switch {
		case kind == pebble.InternalKeyKindRangeDelete:
			cleared = cleared || bytes.Equal(key, format.AppendIndexKey(nil, 0)) && len(end) > 0
		case kind == pebble.InternalKeyKindSet && len(key) == format.IndexKeySize && key[0] == format.IndexPrefix:
			f.Last = format.RevisionOfIndexKey(key)
			if f.First == 0 || cleared {
				f.First, f.Restart = f.Last, cleared
			}
		}
	}
}
