package embedded

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// revisionGap is the distance between the newest revision that is known and the first one after an accepted loss.
// HEAD is a second old at most, so no revision that a client got is used again: a store commits far fewer a second.
const revisionGap = 10_000_000

// verify inspects the directory before the engine opens it for writing. It refuses one that lacks acknowledged
// revisions, except where Options.AcceptLossAfter names the last revision that is left.
func (l *disk) verify() error {
	s, err := l.inspect()
	if err != nil {
		return err
	}
	l.marked, l.found = s.head, s
	damage := s.noHead
	if what := s.damaged(); damage == nil && what != "" {
		damage = l.damage(what, nil)
	}
	return l.decide(s, damage)
}

// decide returns the damage, or prepares the directory for continuing without what is lost.
func (l *disk) decide(s *survey, damage error) error {
	var d *DamageError
	switch {
	case damage == nil && l.accepted != 0:
		l.logger.Warn("no data are lost: --accept-data-loss-after has no effect and can be removed")
		return nil
	case !errors.As(damage, &d) || s.last == 0:
		return damage
	case l.accepted != s.last:
		d.LastRevision = s.last
		return damage
	}
	l.logger.Warn("the store continues without revisions that are lost, as --accept-data-loss-after demands",
		"damage", d.Detail, "last", s.last, "HEAD", s.head.revision, "next", s.next())
	l.loss, l.marked = damage, head{}
	return l.cut(s)
}

// warn logs what a start cannot know. last is the newest revision.
func (l *disk) warn(last int64) {
	s := l.found
	switch newest := len(s.logs) - 1; {
	case l.loss != nil:
	case s.exists && s.head.revision == 0 && last > firstRevision:
		l.logger.Warn("HEAD is missing, so that a loss at the end of the history goes unnoticed", "dir", l.dir, "last", last)
	case newest >= 0 && s.logs[newest].end != nil:
		l.logger.Warn("the end of the log does not decode; a crash leaves such an end, and so does a bad disk: "+
			"what was acknowledged in the second before may be lost",
			"file", l.fs.PathJoin(l.dir, s.logs[newest].name), "last", last, "HEAD", s.head.revision)
	}
}

// next is the revision at which the history goes on after a loss.
func (s *survey) next() int64 { return max(s.newest, s.head.revision) + revisionGap }

// cut removes from the logs what follows the history that is left. After each step the directory ends where it did.
func (l *disk) cut(s *survey) error {
	for i := len(s.logs) - 1; i >= 0; i-- {
		name := l.fs.PathJoin(l.dir, s.logs[i].name)
		var err error
		switch {
		case i >= s.kept:
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

// restart forgets the history before the newest revision and continues it at revision next: clients that know a
// later one list again.
func (e *engine) restart(next int64) error {
	_, newest, err := e.scanIndex()
	if err != nil {
		return err
	}
	for oldest := int64(0); oldest < newest.revision; {
		c, err := e.compactPiece(newest.revision)
		if err != nil {
			return err
		}
		oldest = c.revision
	}
	c := change{tally: newest.tally}
	c.revision = next
	key, value := appendIndexKey(nil, next), appendChange(nil, &c)
	seal(key, value)
	batch := e.db.NewBatch()
	if err := batch.DeleteRange(appendIndexKey(nil, 0), key, nil); err != nil {
		return err
	}
	if err := batch.Set(key, value, nil); err != nil {
		return err
	}
	return e.commit(batch)
}
