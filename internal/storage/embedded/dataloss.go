package embedded

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
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
	var d *DamageError
	switch {
	case damage == nil && l.acceptLossAfter != 0:
		l.logger.Warn("no data have been lost: --accept-data-loss-after has no effect and can be removed")
		return nil
	case !errors.As(damage, &d) || s.last == 0:
		return damage
	case l.acceptLossAfter != s.last:
		d.LastRevision = s.last
		return damage
	}
	l.logger.Warn("the store continues without the lost revisions, because --accept-data-loss-after is set",
		"damage", d.Detail, "last", s.last, "HEAD", s.head.revision, "next", s.next())
	l.acceptedDamage, l.head = damage, head{}
	return l.cut(s)
}

// warn logs a warning if revisions may be lost without being detected. last is the newest revision.
func (l *disk) warn(last int64) {
	s := l.survey
	switch newest := len(s.logs) - 1; {
	case l.acceptedDamage != nil:
	case s.exists && s.head.revision == 0 && last > firstRevision:
		l.logger.Warn("the file HEAD is missing: a loss of the newest revisions cannot be detected",
			"dir", l.dir, "last", last)
	case newest >= 0 && s.logs[newest].end != nil:
		l.logger.Warn("the end of the log cannot be decoded, because of a crash or a damaged disk: "+
			"writes acknowledged in the last second before the server stopped may be lost",
			"file", l.fs.PathJoin(l.dir, s.logs[newest].name), "last", last, "HEAD", s.head.revision)
	}
}

// next returns the first revision after an accepted loss.
func (s *survey) next() int64 { return max(s.newest, s.head.revision) + revisionGap }

// cut removes from the logs everything after the remaining history. It starts with the last log, so that a crash
// between two steps does not change the end of the history.
func (l *disk) cut(s *survey) error {
	for i := len(s.logs) - 1; i >= 0; i-- {
		name := l.fs.PathJoin(l.dir, s.logs[i].name)
		var err error
		switch {
		case i >= s.contiguous:
			err = l.fs.Remove(name)
		case s.logs[i].end != nil:
			part := l.fs.PathJoin(l.dir, "log.new")
			if err = vfs.LimitedCopy(l.fs, name, part, s.logs[i].size); err == nil {
				err = l.fs.Rename(part, name)
			}
		}
		if err == nil {
			err = syncDir(l.fs, l.fs.PathJoin(l.dir, engineDir))
		}
		if err != nil {
			return fmt.Errorf("cut %s: %w", s.logs[i].name, err)
		}
	}
	return nil
}
