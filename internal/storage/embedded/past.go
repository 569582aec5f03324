package embedded

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Bounds of one call of Replay.
const (
	replayRevisions = 4096
	replayBytes     = 2 << 20
)

// past runs work, which reads or shortens the history.
func (l *disk) past(work func(*engine) error) error {
	e := l.engine()
	err := e.reading("the history", func() error { return work(e) })
	if e.failure() != nil {
		return l.notNow(e)
	}
	if damage := (*DamageError)(nil); errors.As(err, &damage) {
		l.logger.Error("the history cannot be read", "err", err)
	}
	return err
}

// walk calls yield for the index entries in (after, until] of a snapshot of the
// engine, until it returns false.
func (e *engine) walk(view *pebble.Snapshot, after, until int64, yield func(change) (bool, error)) error {
	it, err := view.NewIter(indexBounds(0))
	if err != nil {
		return e.damage("the index", err)
	}
	defer it.Close()
	if !it.First() {
		return e.damage("the index is gone", it.Error())
	}
	oldest, err := e.change(it)
	if err != nil {
		return err
	}
	if after < oldest.revision {
		return &storage.CompactedError{Requested: after, Oldest: oldest.revision}
	}
	it.SeekGE(appendIndexKey(nil, after+1))
	for revision := after + 1; revision <= until; revision++ {
		if !it.Valid() {
			return e.damage(fmt.Sprintf("revision %d is missing", revision), it.Error())
		}
		c, err := e.change(it)
		if err != nil {
			return err
		}
		if c.revision != revision {
			return e.damage(fmt.Sprintf("revision %d is missing", revision), nil)
		}
		if more, err := yield(c); err != nil || !more {
			return err
		}
		it.Next()
	}
	return nil
}

// version reads the state that key got at revision; nil if it was deleted then.
func (e *engine) version(view *pebble.Snapshot, key string, revision int64) (*storage.Record, error) {
	k := appendVersionKey(nil, key, revision)
	v, closer, err := view.Get(k)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, e.damage(fmt.Sprintf("%s of revision %d is missing", key, revision), nil)
	}
	if err != nil {
		return nil, e.damage(fmt.Sprintf("%s of revision %d", key, revision), err)
	}
	defer closer.Close()
	r, err := e.decode(k, v)
	if err != nil {
		return nil, e.damage(fmt.Sprintf("%s of revision %d", key, revision), err)
	}
	return r, nil
}

// Replay reads events back, previous states included.
func (l *disk) Replay(_ context.Context, prefix string, after, until int64) ([]*storage.Event, int64, error) {
	var events []*storage.Event
	var reached int64
	err := l.past(func(e *engine) (err error) {
		events, reached, err = e.replay(prefix, after, until)
		return err
	})
	if err != nil {
		return nil, after, err
	}
	return events, reached, nil
}

func (e *engine) replay(prefix string, after, until int64) (events []*storage.Event, reached int64, err error) {
	view := e.db.NewSnapshot()
	defer view.Close()
	reached = after
	var size int64
	err = e.walk(view, after, min(until, after+replayRevisions), func(c change) (bool, error) {
		if strings.HasPrefix(c.key, prefix) {
			e, err := e.event(view, c)
			if err != nil {
				return false, err
			}
			events = append(events, e)
			size += e.HistoryCost()
			if e.Record != nil {
				size += int64(len(e.Record.Value))
			}
		}
		reached = c.revision
		return size < replayBytes, nil
	})
	return events, reached, err
}

// event reads what an index entry speaks of.
func (e *engine) event(view *pebble.Snapshot, c change) (*storage.Event, error) {
	ev := &storage.Event{Revision: c.revision, Key: c.key}
	var err error
	if ev.Record, err = e.version(view, c.key, c.revision); err != nil {
		return nil, err
	}
	if c.previous != 0 {
		if ev.Previous, err = e.version(view, c.key, c.previous); err != nil {
			return nil, err
		}
	}
	if (ev.Record == nil) != c.deleted || ev.Previous == nil && c.previous != 0 {
		return nil, e.damage(fmt.Sprintf("%s of revision %d does not fit the index", c.key, c.revision), nil)
	}
	return ev, nil
}

// ReadAt reads, for each key that changed since, what its first change replaced.
func (l *disk) ReadAt(_ context.Context, target int64, base *storage.Snapshot, put func(string, *storage.Record)) error {
	return l.past(func(e *engine) error { return e.rewind(target, base.Revision(), put) })
}

func (e *engine) rewind(target, from int64, put func(string, *storage.Record)) error {
	view := e.db.NewSnapshot()
	defer view.Close()
	seen := make(map[string]bool)
	return e.walk(view, target, from, func(c change) (bool, error) {
		if seen[c.key] {
			return true, nil
		}
		seen[c.key] = true
		var r *storage.Record
		if c.previous != 0 {
			var err error
			if r, err = e.version(view, c.key, c.previous); err != nil {
				return false, err
			}
		}
		put(c.key, r)
		return true, nil
	})
}

// compactRevisions is how much of the history one batch of Compact removes.
const compactRevisions = 2048

// Compact removes superseded versions and the index before revision, piece by
// piece, each a batch that leaves a whole, shorter history. It need not be synced:
// what a crash takes back is compacted again.
func (l *disk) Compact(revision int64) error {
	err := l.past(func(e *engine) error {
		for oldest := int64(0); oldest < revision; {
			c, err := e.compactPiece(revision)
			if err != nil {
				return err
			}
			oldest = c.revision
		}
		return nil
	})
	if err != nil {
		return err
	}
	l.compacted.Store(revision)
	if err := l.mark(); err != nil {
		l.logger.Warn("how far the log reaches could not be noted", "err", err)
	}
	return nil
}

// compactPiece moves the oldest revision towards target and returns it.
func (e *engine) compactPiece(target int64) (oldest change, err error) {
	it, err := e.db.NewIter(indexBounds(0))
	if err != nil {
		return oldest, e.damage("the index", err)
	}
	defer it.Close()
	if !it.First() {
		return oldest, e.damage("the index is gone", it.Error())
	}
	if oldest, err = e.change(it); err != nil || oldest.revision >= target {
		return oldest, err
	}
	batch := e.db.NewBatch()
	defer batch.Close()
	first := oldest.revision
	for it.Next(); it.Valid() && oldest.revision < min(target, first+compactRevisions); it.Next() {
		if oldest, err = e.change(it); err != nil {
			return oldest, err
		}
		if err := deleteSuperseded(batch, oldest); err != nil {
			return oldest, err
		}
	}
	if err := it.Error(); err != nil {
		return oldest, e.damage("the index", err)
	}
	if err := batch.DeleteRange(appendIndexKey(nil, first), appendIndexKey(nil, oldest.revision), nil); err != nil {
		return oldest, err
	}
	return oldest, e.db.Apply(batch, pebble.NoSync)
}

// deleteSuperseded deletes what nobody can ask for once c's revision is the oldest.
func deleteSuperseded(batch *pebble.Batch, c change) error {
	if c.previous != 0 {
		if err := batch.Delete(appendVersionKey(nil, c.key, c.previous), nil); err != nil {
			return err
		}
	}
	if c.deleted {
		return batch.Delete(appendVersionKey(nil, c.key, c.revision), nil)
	}
	return nil
}
