package engine

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/format"
)

// ReplayRevisions is the maximum number of revisions that one call of Replay covers.
const ReplayRevisions = 4096

// walkIndex calls yield for the index entries in (after, until] of a Pebble snapshot, until it returns false.
func (e *Engine) walkIndex(snap *pebble.Snapshot, after, until int64, yield func(format.Change) (bool, error)) error {
	it, err := snap.NewIter(indexBounds(0))
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
	if after < oldest.Revision {
		return &storage.CompactedError{Requested: after, Oldest: oldest.Revision}
	}
	it.SeekGE(format.AppendIndexKey(nil, after+1))
	for revision := after + 1; revision <= until; revision++ {
		if !it.Valid() {
			return e.damage(fmt.Sprintf("revision %d is missing", revision), it.Error())
		}
		c, err := e.change(it)
		if err != nil {
			return err
		}
		if c.Revision != revision {
			return e.damage(fmt.Sprintf("revision %d is missing", revision), nil)
		}
		if more, err := yield(c); err != nil || !more {
			return err
		}
		it.Next()
	}
	return nil
}

// version reads the state of key written at revision. It returns nil if the key was deleted then.
func (e *Engine) version(snap *pebble.Snapshot, key string, revision int64) (*storage.Record, error) {
	k := format.AppendVersionKey(nil, key, revision)
	v, closer, err := snap.Get(k)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, e.damage(fmt.Sprintf("the value of key %s at revision %d is missing", key, revision), nil)
	}
	if err != nil {
		return nil, e.damage(fmt.Sprintf("the value of key %s at revision %d", key, revision), err)
	}
	defer closer.Close()
	r, err := format.DecodeVersion(k, v)
	if err != nil {
		return nil, e.damage(fmt.Sprintf("the value of key %s at revision %d", key, revision), err)
	}
	return r, nil
}

// Replay returns the events below prefix in (after, until], and the last revision it has read.
func (e *Engine) Replay(prefix string, after, until int64) (events []*storage.Event, reached int64, err error) {
	snap := e.DB.NewSnapshot()
	defer snap.Close()
	reached = after
	var size int64
	err = e.walkIndex(snap, after, min(until, after+ReplayRevisions), func(c format.Change) (bool, error) {
		if strings.HasPrefix(c.Key, prefix) {
			e, err := e.event(snap, c)
			if err != nil {
				return false, err
			}
			events = append(events, e)
			size += e.ReplayCost()
		}
		reached = c.Revision
		return size < storage.ReplayBytes, nil
	})
	return events, reached, err
}

// event reads the event of an index entry.
func (e *Engine) event(snap *pebble.Snapshot, c format.Change) (*storage.Event, error) {
	ev := &storage.Event{Revision: c.Revision, Key: c.Key}
	var err error
	if ev.Record, err = e.version(snap, c.Key, c.Revision); err != nil {
		return nil, err
	}
	if c.Previous != 0 {
		if ev.Previous, err = e.version(snap, c.Key, c.Previous); err != nil {
			return nil, err
		}
	}
	if (ev.Record == nil) != c.Deleted || ev.Previous == nil && c.Previous != 0 {
		return nil, e.damage(fmt.Sprintf("the value of key %s at revision %d contradicts the index",
			c.Key, c.Revision), nil)
	}
	return ev, nil
}

// ReadAt calls put for each key that changed in (target, from], with its state at target. The first change of a key
// after target contains the revision of this state.
func (e *Engine) ReadAt(target, from int64, put func(string, *storage.Record)) error {
	snap := e.DB.NewSnapshot()
	defer snap.Close()
	seen := make(map[string]bool)
	return e.walkIndex(snap, target, from, func(c format.Change) (bool, error) {
		if seen[c.Key] {
			return true, nil
		}
		seen[c.Key] = true
		var r *storage.Record
		if c.Previous != 0 {
			var err error
			if r, err = e.version(snap, c.Key, c.Previous); err != nil {
				return false, err
			}
		}
		put(c.Key, r)
		return true, nil
	})
}

// compactRevisions is the number of revisions that one batch of compact removes.
const compactRevisions = 2048

// Compact removes the history before revision in several batches. Each batch leaves a consistent, shorter history. The
// batches are not synced, because a compaction lost in a crash is repeated.
func (e *Engine) Compact(revision int64) error {
	for oldest := int64(0); oldest < revision; {
		c, err := e.compactStep(revision)
		if err != nil {
			return err
		}
		oldest = c.Revision
	}
	return nil
}

// compactStep removes one batch of the history before target. It returns the oldest index entry that is left.
func (e *Engine) compactStep(target int64) (oldest format.Change, err error) {
	it, err := e.DB.NewIter(indexBounds(0))
	if err != nil {
		return oldest, e.damage("the index", err)
	}
	defer it.Close()
	if !it.First() {
		return oldest, e.damage("the index is gone", it.Error())
	}
	if oldest, err = e.change(it); err != nil || oldest.Revision >= target {
		return oldest, err
	}
	batch := e.DB.NewBatch()
	defer batch.Close()
	first := oldest.Revision
	for it.Next(); it.Valid() && oldest.Revision < min(target, first+compactRevisions); it.Next() {
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
	from, to := format.AppendIndexKey(nil, first), format.AppendIndexKey(nil, oldest.Revision)
	if err := batch.DeleteRange(from, to, nil); err != nil {
		return oldest, err
	}
	return oldest, e.DB.Apply(batch, pebble.NoSync)
}

// deleteSuperseded deletes the versions that are no longer needed when the revision of c is the oldest readable
// one.
func deleteSuperseded(batch *pebble.Batch, c format.Change) error {
	if c.Previous != 0 {
		if err := batch.Delete(format.AppendVersionKey(nil, c.Key, c.Previous), nil); err != nil {
			return err
		}
	}
	if c.Deleted {
		return batch.Delete(format.AppendVersionKey(nil, c.Key, c.Revision), nil)
	}
	return nil
}

// Restart drops the history before the newest revision and continues the history at the given revision. Clients
// that have seen a later revision than the newest must list again.
func (e *Engine) Restart(next int64) error {
	_, newest, err := e.scanIndex()
	if err != nil {
		return err
	}
	if err := e.Compact(newest.Revision); err != nil {
		return err
	}
	c := format.Change{Tally: newest.Tally}
	c.Revision = next
	key, value := format.AppendIndexKey(nil, next), format.AppendChange(nil, &c)
	format.Seal(key, value)
	batch := e.DB.NewBatch()
	if err := batch.DeleteRange(format.AppendIndexKey(nil, 0), key, nil); err != nil {
		return err
	}
	if err := batch.Set(key, value, nil); err != nil {
		return err
	}
	return e.Commit(batch)
}
