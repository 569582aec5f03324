package embedded

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Limits of one call of Replay.
const (
	replayRevisions = 4096
	replayBytes     = 2 << 20
)

// walkIndex calls yield for the index entries in (after, until] of a Pebble snapshot, until it returns false.
func (e *engine) walkIndex(snap *pebble.Snapshot, after, until int64, yield func(change) (bool, error)) error {
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

// version reads the state of key written at revision. It returns nil if the key was deleted then.
func (e *engine) version(snap *pebble.Snapshot, key string, revision int64) (*storage.Record, error) {
	k := appendVersionKey(nil, key, revision)
	v, closer, err := snap.Get(k)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, e.damage(fmt.Sprintf("the value of key %s at revision %d is missing", key, revision), nil)
	}
	if err != nil {
		return nil, e.damage(fmt.Sprintf("the value of key %s at revision %d", key, revision), err)
	}
	defer closer.Close()
	r, err := decodeVersion(k, v)
	if err != nil {
		return nil, e.damage(fmt.Sprintf("the value of key %s at revision %d", key, revision), err)
	}
	return r, nil
}

// replay returns the events below prefix in (after, until], and the last revision it has read.
func (e *engine) replay(prefix string, after, until int64) (events []*storage.Event, reached int64, err error) {
	snap := e.db.NewSnapshot()
	defer snap.Close()
	reached = after
	var size int64
	err = e.walkIndex(snap, after, min(until, after+replayRevisions), func(c change) (bool, error) {
		if strings.HasPrefix(c.key, prefix) {
			e, err := e.event(snap, c)
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

// event reads the event of an index entry.
func (e *engine) event(snap *pebble.Snapshot, c change) (*storage.Event, error) {
	ev := &storage.Event{Revision: c.revision, Key: c.key}
	var err error
	if ev.Record, err = e.version(snap, c.key, c.revision); err != nil {
		return nil, err
	}
	if c.previous != 0 {
		if ev.Previous, err = e.version(snap, c.key, c.previous); err != nil {
			return nil, err
		}
	}
	if (ev.Record == nil) != c.deleted || ev.Previous == nil && c.previous != 0 {
		return nil, e.damage(fmt.Sprintf("the value of key %s at revision %d contradicts the index",
			c.key, c.revision), nil)
	}
	return ev, nil
}

// readAt calls put for each key that changed in (target, from], with its state at target. The first change of a key
// after target contains the revision of this state.
func (e *engine) readAt(target, from int64, put func(string, *storage.Record)) error {
	snap := e.db.NewSnapshot()
	defer snap.Close()
	seen := make(map[string]bool)
	return e.walkIndex(snap, target, from, func(c change) (bool, error) {
		if seen[c.key] {
			return true, nil
		}
		seen[c.key] = true
		var r *storage.Record
		if c.previous != 0 {
			var err error
			if r, err = e.version(snap, c.key, c.previous); err != nil {
				return false, err
			}
		}
		put(c.key, r)
		return true, nil
	})
}

// compactRevisions is the number of revisions that one batch of compact removes.
const compactRevisions = 2048

// compact removes the history before revision in several batches. Each batch leaves a consistent, shorter history. The
// batches are not synced, because a compaction lost in a crash is repeated.
func (e *engine) compact(revision int64) error {
	for oldest := int64(0); oldest < revision; {
		c, err := e.compactStep(revision)
		if err != nil {
			return err
		}
		oldest = c.revision
	}
	return nil
}

// compactStep removes one batch of the history before target. It returns the oldest index entry that is left.
func (e *engine) compactStep(target int64) (oldest change, err error) {
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

// deleteSuperseded deletes the versions that are no longer needed when the revision of c is the oldest readable
// one.
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

// restart drops the history before the newest revision and continues the history at the given revision. Clients
// that have seen a later revision than the newest must list again.
func (e *engine) restart(next int64) error {
	_, newest, err := e.scanIndex()
	if err != nil {
		return err
	}
	if err := e.compact(newest.revision); err != nil {
		return err
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
