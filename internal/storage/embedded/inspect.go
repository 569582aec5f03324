package embedded

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/trellis-k8s/trellis/internal/storage/embedded/engine"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/format"
)

// survey is the state of the directory before anything is written to it. The history begins in the engine's
// tables and continues in its logs.
type survey struct {
	exists     bool // whether there is an engine
	head       format.Head
	headErr    error            // a *DamageError if HEAD is damaged
	logs       []engine.LogFile // sorted by number
	tables     int64            // last revision in the tables
	contiguous int              // number of logs that continue the history without a gap
	last       int64            // last revision of this history
	newest     int64            // newest revision in all logs and tables
}

// inspect reads HEAD, the end of the tables, and the logs. It changes nothing.
func (l *disk) inspect() (*survey, error) {
	s := &survey{}
	var damage *engine.DamageError
	var err error
	if s.head, err = l.readHead(); errors.As(err, &damage) {
		s.headErr = err
	} else if err != nil {
		return nil, err
	}
	if s.exists, err = l.engineExists(s.head); err != nil || !s.exists {
		return s, err
	}
	e := engine.New(l.Config)
	defer func() { _ = e.Close() }() // nothing has been written
	err = e.Read("the engine's files", func() (err error) {
		s.tables, err = e.EndOfTables()
		return err
	})
	if err != nil {
		return nil, e.OpenError(err)
	}
	if s.logs, err = e.ReadLogs(); err != nil {
		return nil, err
	}
	s.findEnd()
	return s, nil
}

// engineExists reports whether the directory has an engine. It returns a *DamageError if the manifest is missing
// but HEAD or tables exist. Pebble would create a new, empty store there and delete the tables.
func (l *disk) engineExists(h format.Head) (exists bool, err error) {
	dir := l.FS.PathJoin(l.Dir, engine.Dir)
	names, err := l.FS.List(dir)
	if err == nil {
		var found *pebble.DBDesc
		if found, err = pebble.Peek(dir, l.FS); err == nil && found.Exists {
			return true, nil
		}
	}
	for _, name := range names {
		if err == nil && strings.HasSuffix(name, ".sst") {
			return false, l.damage(engine.Dir+" has tables but no manifest", nil)
		}
	}
	if h.Revision > 0 {
		return false, l.damage(fmt.Sprintf("%s has no manifest, but the file HEAD contains revision %d",
			engine.Dir, h.Revision), err)
	}
	return false, nil // if the directory cannot be read, open fails
}

// findEnd sets how far the history continues in the logs without a gap.
func (s *survey) findEnd() {
	s.last, s.newest = s.tables, s.tables
	whole := true
	for i := range s.logs {
		f := &s.logs[i]
		s.newest = max(s.newest, f.Last)
		if whole = whole && (f.Restart || f.First <= s.last+1); whole {
			s.contiguous, s.last = i+1, max(s.last, f.Last)
		}
	}
}

// lastFile returns the name of the file in which the history ends.
func (s *survey) lastFile() string {
	if s.contiguous == 0 {
		return engine.Dir
	}
	return s.logs[s.contiguous-1].Name
}

// damage returns a description of the damage, or "" if there is none. Damage that a crash can cause does not count.
func (s *survey) damage() string {
	// The engine has ended all logs but the last one properly. Logs whose revisions are also in the tables are
	// not needed any more.
	for i := range s.logs[:max(s.contiguous, 1)-1] {
		if f := &s.logs[i]; f.End != nil && f.Last > s.tables {
			return fmt.Sprintf("%s cannot be decoded after revision %d, but the file HEAD contains revision %d",
				f.Name, f.Last, s.head.Revision)
		}
	}
	ends := fmt.Sprintf("the history ends at revision %d, and the file HEAD contains revision %d",
		s.last, s.head.Revision)
	switch newest := len(s.logs) - 1; {
	case s.contiguous <= newest && (s.contiguous == 0 || s.logs[s.contiguous-1].End == nil):
		return fmt.Sprintf("%s begins at revision %d, and the log file before it is missing: %s",
			s.logs[s.contiguous].Name, s.logs[s.contiguous].First, ends)
	case s.contiguous <= newest:
		return fmt.Sprintf("%s cannot be decoded, and %s begins at revision %d: %s",
			s.lastFile(), s.logs[s.contiguous].Name, s.logs[s.contiguous].First, ends)
	case s.head.Log > 0 && (newest < 0 || s.logs[newest].Number < s.head.Log):
		return fmt.Sprintf("%s/%06d.log is missing: %s", engine.Dir, s.head.Log, ends)
	case s.head.Revision > s.last:
		return fmt.Sprintf("%s is incomplete: %s", s.lastFile(), ends)
	case newest >= 0 && s.logs[newest].End != nil && !s.logs[newest].Torn():
		return fmt.Sprintf("%s cannot be decoded: %s", s.lastFile(), ends)
	}
	return ""
}
