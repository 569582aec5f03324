package embedded

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

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
	e := newEngine(l.engineConfig)
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
