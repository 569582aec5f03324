package embedded

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
)

// engineDir is the name of Pebble's directory in the data directory.
const engineDir = "engine"

// logFile describes a write-ahead log of the engine. The description covers the log up to its end, or up to the
// first part that cannot be decoded.
type logFile struct {
	number      uint64
	name        string // path relative to the data directory
	first, last int64  // first and last revision in it; 0 means none
	restart     bool   // its first revision begins a new history (see engine.restart)
	size        int64  // number of bytes that can be decoded, if end is not nil
	end         error  // error of decoding the rest; nil means that the log ends properly
}

// torn reports whether a crash can be the cause of the damaged end of the log. Log records contain the offset up to
// which the log had been synced. If a later record covers the damaged place, a crash cannot be the cause.
func (f *logFile) torn() bool { return errors.Is(f.end, record.ErrUnexpectedEOF) }

// survey is the state of the directory before anything is written to it. The history begins in the engine's
// tables and continues in its logs.
type survey struct {
	exists     bool // whether there is an engine
	head       head
	headErr    error     // a *DamageError if HEAD is damaged
	logs       []logFile // sorted by number
	tables     int64     // last revision in the tables
	contiguous int       // number of logs that continue the history without a gap
	last       int64     // last revision of this history
	newest     int64     // newest revision in all logs and tables
}

// inspect reads HEAD, the end of the tables, and the logs. It changes nothing.
func (l *disk) inspect() (*survey, error) {
	s := &survey{}
	var damage *DamageError
	var err error
	if s.head, err = l.readHead(); errors.As(err, &damage) {
		s.headErr = err
	} else if err != nil {
		return nil, err
	}
	if s.exists, err = l.engineExists(s.head); err != nil || !s.exists {
		return s, err
	}
	e := l.newEngine()
	defer func() { _ = e.close() }() // nothing has been written
	err = e.read("the engine's files", func() (err error) {
		s.tables, err = e.endOfTables()
		return err
	})
	if err != nil {
		return nil, e.openError(err)
	}
	if s.logs, err = e.readLogs(); err != nil {
		return nil, err
	}
	s.findEnd()
	return s, nil
}

// engineExists reports whether the directory has an engine. It returns a *DamageError if the manifest is missing
// but HEAD or tables exist. Pebble would create a new, empty store there and delete the tables.
func (l *disk) engineExists(h head) (exists bool, err error) {
	dir := l.fs.PathJoin(l.dir, engineDir)
	names, err := l.fs.List(dir)
	if err == nil {
		var found *pebble.DBDesc
		if found, err = pebble.Peek(dir, l.fs); err == nil && found.Exists {
			return true, nil
		}
	}
	for _, name := range names {
		if err == nil && strings.HasSuffix(name, ".sst") {
			return false, l.damage(engineDir+" has tables but no manifest", nil)
		}
	}
	if h.revision > 0 {
		return false, l.damage(fmt.Sprintf("%s has no manifest, but the file HEAD contains revision %d",
			engineDir, h.revision), err)
	}
	return false, nil // if the directory cannot be read, open fails
}

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

// endOfTables returns the last revision that is stored in a table, or 0.
func (e *engine) endOfTables() (revision int64, err error) {
	o := e.pebbleOptions()
	o.FS, o.ReadOnly = withoutLogs{o.FS}, true
	if e.db, err = pebble.Open(e.path(), o); err != nil {
		return 0, err
	}
	it, err := e.db.NewIter(indexBounds(0))
	if err != nil {
		return 0, err
	}
	if it.Last() {
		var c change
		c, err = e.change(it)
		revision = c.revision
	}
	return revision, errors.Join(err, it.Error(), it.Close())
}

// readLogs reads the engine's logs.
func (e *engine) readLogs() ([]logFile, error) {
	all, err := wal.Scan(wal.Dir{FS: e.fs, Dirname: e.path()})
	if err != nil {
		return nil, fmt.Errorf("read the logs in %s: %w", e.dir, err)
	}
	logs := make([]logFile, 0, len(all))
	for _, one := range all {
		_, name := one.SegmentLocation(0)
		f := logFile{number: uint64(one.Num), name: path.Join(engineDir, e.fs.PathBase(name))}
		r := one.OpenForRead()
		err := f.read(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return nil, fmt.Errorf("read %s in %s: %w", f.name, e.dir, err)
		}
		logs = append(logs, f)
	}
	return logs, nil
}

// read reads the revisions in a log up to its end, or up to the first part that cannot be decoded.
func (f *logFile) read(r wal.Reader) error {
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
			f.size, f.end = at.Physical, err
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
func (f *logFile) add(batch []byte) error {
	cleared := false
	for r := batchrepr.Read(batch); ; {
		kind, key, end, ok, err := r.Next()
		if err != nil || !ok {
			return err
		}
		switch {
		case kind == pebble.InternalKeyKindRangeDelete:
			cleared = cleared || bytes.Equal(key, appendIndexKey(nil, 0)) && len(end) > 0
		case kind == pebble.InternalKeyKindSet && len(key) == indexKeySize && key[0] == indexPrefix:
			f.last = revisionOfIndexKey(key)
			if f.first == 0 || cleared {
				f.first, f.restart = f.last, cleared
			}
		}
	}
}

// findEnd sets how far the history continues in the logs without a gap.
func (s *survey) findEnd() {
	s.last, s.newest = s.tables, s.tables
	whole := true
	for i := range s.logs {
		f := &s.logs[i]
		s.newest = max(s.newest, f.last)
		if whole = whole && (f.restart || f.first <= s.last+1); whole {
			s.contiguous, s.last = i+1, max(s.last, f.last)
		}
	}
}

// lastFile returns the name of the file in which the history ends.
func (s *survey) lastFile() string {
	if s.contiguous == 0 {
		return engineDir
	}
	return s.logs[s.contiguous-1].name
}

// damage returns a description of the damage, or "" if there is none. Damage that a crash can cause does not count.
func (s *survey) damage() string {
	// The engine has ended all logs but the last one properly. Logs whose revisions are also in the tables are
	// not needed any more.
	for i := range s.logs[:max(s.contiguous, 1)-1] {
		if f := &s.logs[i]; f.end != nil && f.last > s.tables {
			return fmt.Sprintf("%s cannot be decoded after revision %d, but the file HEAD contains revision %d",
				f.name, f.last, s.head.revision)
		}
	}
	ends := fmt.Sprintf("the history ends at revision %d, and the file HEAD contains revision %d",
		s.last, s.head.revision)
	switch newest := len(s.logs) - 1; {
	case s.contiguous <= newest && (s.contiguous == 0 || s.logs[s.contiguous-1].end == nil):
		return fmt.Sprintf("%s begins at revision %d, and the log file before it is missing: %s",
			s.logs[s.contiguous].name, s.logs[s.contiguous].first, ends)
	case s.contiguous <= newest:
		return fmt.Sprintf("%s cannot be decoded, and %s begins at revision %d: %s",
			s.lastFile(), s.logs[s.contiguous].name, s.logs[s.contiguous].first, ends)
	case s.head.log > 0 && (newest < 0 || s.logs[newest].number < s.head.log):
		return fmt.Sprintf("%s/%06d.log is missing: %s", engineDir, s.head.log, ends)
	case s.head.revision > s.last:
		return fmt.Sprintf("%s is incomplete: %s", s.lastFile(), ends)
	case newest >= 0 && s.logs[newest].end != nil && !s.logs[newest].torn():
		return fmt.Sprintf("%s cannot be decoded: %s", s.lastFile(), ends)
	}
	return ""
}
