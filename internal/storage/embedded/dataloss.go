package embedded

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/trellis-k8s/trellis/internal/storage/embedded/engine"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/format"
)

// revisionGap is the distance between the newest known revision and the first one after an accepted loss. HEAD is
// at most a second old, and a store commits far fewer revisions than this in a second. The store therefore never
// reuses a revision that a client has seen.
const revisionGap = 10_000_000

// verify inspects the directory before the engine opens it for writing. It returns a *DamageError if the
// directory lacks acknowledged revisions, unless Options.AcceptLossAfter is the last revision that is left.
func (l *disk) verify() error {
	s, err := l.inspect()
	if err != nil {
		return err
	}
	l.head, l.survey = s.head, s
	damage := s.headErr
	if what := s.damage(); damage == nil && what != "" {
		damage = l.damage(what, nil)
	}
	return l.acceptLoss(s, damage)
}

// acceptLoss returns the given damage if the flag does not accept it. Otherwise it prepares the directory, so that
// the store can continue without the lost revisions.
func (l *disk) acceptLoss(s *survey, damage error) error {
	var d *engine.DamageError
	switch {
	case damage == nil && l.acceptLossAfter != 0:
		l.Logger.Warn("no data have been lost: --accept-data-loss-after has no effect and can be removed")
		return nil
	case !errors.As(damage, &d) || s.last == 0:
		return damage
	case l.acceptLossAfter != s.last:
		d.LastRevision = s.last
		return damage
	}
	l.Logger.Warn("the store continues without the lost revisions, because --accept-data-loss-after is set",
		"damage", d.Detail, "last", s.last, "HEAD", s.head.Revision, "next", s.next())
	l.acceptedDamage, l.head = damage, format.Head{}
	return l.cut(s)
}

// warn logs a warning if revisions may be lost without being detected. last is the newest revision.
func (l *disk) warn(last int64) {
	s := l.survey
	switch newest := len(s.logs) - 1; {
	case l.acceptedDamage != nil:
	case s.exists && s.head.Revision == 0 && last > format.FirstRevision:
		l.Logger.Warn("the file HEAD is missing: a loss of the newest revisions cannot be detected",
			"dir", l.Dir, "last", last)
	case newest >= 0 && s.logs[newest].End != nil:
		l.Logger.Warn("the end of the log cannot be decoded, because of a crash or a damaged disk: "+
			"writes acknowledged in the last second before the server stopped may be lost",
			"file", l.FS.PathJoin(l.Dir, s.logs[newest].Name), "last", last, "HEAD", s.head.Revision)
	}
}

// next returns the first revision after an accepted loss.
func (s *survey) next() int64 { return max(s.newest, s.head.Revision) + revisionGap }

// cut removes from the logs everything after the remaining history. It starts with the last log, so that a crash
// between two steps does not change the end of the history.
func (l *disk) cut(s *survey) error {
	for i := len(s.logs) - 1; i >= 0; i-- {
		name := l.FS.PathJoin(l.Dir, s.logs[i].Name)
		var err error
		switch {
		case i >= s.contiguous:
			err = l.FS.Remove(name)
		case s.logs[i].End != nil:
			part := l.FS.PathJoin(l.Dir, "log.new")
			if err = vfs.LimitedCopy(l.FS, name, part, s.logs[i].Size); err == nil {
				err = l.FS.Rename(part, name)
			}
		}
		if err == nil {
			err = syncDir(l.FS, l.FS.PathJoin(l.Dir, engine.Dir))
		}
		if err != nil {
			return fmt.Errorf("cut %s: %w", s.logs[i].Name, err)
		}
	}
	return nil
}
