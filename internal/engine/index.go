package engine

import (
	"encoding/binary"
	"hash/maphash"
	"iter"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/tree"
)

const (
	// indexFrom is how many objects make a list by a field worth an index.
	indexFrom = 256
	// indexWorth is how many times fewer objects an index must name than there are.
	indexWorth = 4
	// maxIndexBytes bounds what all indexes take together, the least recently used one going first.
	maxIndexBytes = 64 << 20
	// indexIdle is how long an index is kept that nobody uses.
	indexIdle = 10 * time.Minute
	// entryBytes is about what an entry takes besides its key.
	entryBytes = 72
)

// indexes are over the values of selectable fields. A write knows nothing of them: a list that
// demands a value brings the index of the field up to its snapshot, by what has been written since the last
// one did. What an index names is looked up in the snapshot and judged there, so that it may name too
// much, but never too little. The zero value is ready.
type indexes struct {
	mu      sync.Mutex
	byField map[indexKey]*fieldIndex
	sweeper *time.Timer
}

type indexKey struct {
	version *resource.Version
	place   int // in version.SelectableFields
}

// fieldIndex is the index of one field.
type fieldIndex struct {
	place int
	used  atomic.Int64 // when, in Unix time
	state atomic.Pointer[indexState]
	mu    sync.Mutex // held by who makes the next state
}

// indexState is an index as of one revision. It is immutable.
type indexState struct {
	revision int64
	// keys are storage keys, each under bucket(hash of the value)+key. Objects without a value are left out; those that
	// have got another one, or are gone, may still be there.
	keys  tree.Tree[string]
	bytes int
	large bool // takes too much: there are no keys, and all is walked
}

// records yields the records from which a list is made, in the order of their keys: those that an index names,
// if one helps, or all.
func (q *query) records(snap *storage.Snapshot, after string) iter.Seq[*storage.Record] {
	ix, st, value := q.narrowest(snap)
	if ix == nil {
		return snap.Walk(q.prefix, after)
	}
	return func(yield func(*storage.Record) bool) {
		hash, stale := hashValue(value), []string(nil)
		bucket := bucket(hash)
		if after != "" {
			after = bucket + after
		}
		st.keys.Walk(bucket+q.prefix, after, func(key string) bool {
			rec := snap.Get(key)
			if rec == nil || hashOf(q, rec, ix.place) != hash {
				stale = append(stale, bucket+key)
				return true
			}
			return yield(rec)
		})
		ix.forget(st, stale)
	}
}

// narrowest finds the index that names the fewest objects, as of snap; nil if it is better to walk.
func (q *query) narrowest(snap *storage.Snapshot) (ix *fieldIndex, st *indexState, value string) {
	if q.paths == nil || q.reader.asStored || q.reader.mayFail() {
		return nil, nil, ""
	}
	least := snap.Count(q.prefix, "")
	if least < indexFrom {
		return nil, nil, ""
	}
	least /= indexWorth
	for _, term := range q.fields {
		if term.place < 0 || term.not || term.value == "" {
			continue
		}
		candidate := q.indexes.find(q.reader.version, term.place)
		state := candidate.at(q, snap)
		if state == nil {
			continue
		}
		if n := state.keys.Count(bucket(hashValue(term.value))+q.prefix, ""); n <= least {
			ix, st, value, least = candidate, state, term.value, n
		}
	}
	if ix != nil {
		q.indexes.trim(ix)
	}
	return ix, st, value
}

// bucketLength is the length of every bucket.
const bucketLength = 8

// bucket is what an index keeps the keys of one value under, and maybe of others with that hash.
func bucket(hash uint64) string {
	var b [bucketLength]byte
	binary.BigEndian.PutUint64(b[:], hash)
	return string(b[:])
}

// hashValue is not 0 but for "".
func hashValue(value string) uint64 {
	if value == "" {
		return 0
	}
	return maphash.String(markSeed, value) | 1
}

// hashOf is of the value that a record has in a selectable field, 0 if it has none.
func hashOf(q *query, rec *storage.Record, place int) uint64 {
	values := q.values(rec)
	if values == nil {
		return 0
	}
	return hashValue(values[place])
}

// at returns the index as of snap, making it or bringing it up to date; nil if it is newer than snap, or too large.
func (ix *fieldIndex) at(q *query, snap *storage.Snapshot) *indexState {
	st := ix.state.Load()
	if st == nil || st.revision < snap.Revision() {
		st = ix.follow(q, snap)
	}
	if st.revision != snap.Revision() || st.large {
		return nil
	}
	return st
}

func (ix *fieldIndex) follow(q *query, snap *storage.Snapshot) *indexState {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	st := ix.state.Load()
	switch {
	case st == nil:
		st = ix.build(q, snap)
	case st.revision >= snap.Revision():
		return st
	case st.large:
		st = &indexState{revision: snap.Revision(), large: true}
	default:
		if st = st.with(q, snap, ix.place); st.keys.Len() > 2*snap.Count(q.reader.version.Definition.Prefix, "")+indexFrom {
			st = ix.build(q, snap)
		}
	}
	if st.bytes > maxIndexBytes {
		st = &indexState{revision: st.revision, large: true}
	}
	ix.state.Store(st)
	return st
}

// build makes the index of a snapshot.
func (ix *fieldIndex) build(q *query, snap *storage.Snapshot) *indexState {
	st := &indexState{revision: snap.Revision()}
	var keys []string
	for rec := range snap.Walk(q.reader.version.Definition.Prefix, "") {
		if h := hashOf(q, rec, ix.place); h != 0 {
			keys = append(keys, bucket(h)+rec.Key)
			st.bytes += bucketLength + len(rec.Key) + entryBytes
		}
	}
	slices.Sort(keys)
	var b tree.Builder[string]
	for _, key := range keys {
		_ = b.Add(key, 0, key[bucketLength:]) // the keys are in order
	}
	st.keys = b.Tree()
	return st
}

// with is st with what has been written until snap.
func (st *indexState) with(q *query, snap *storage.Snapshot, place int) *indexState {
	next := &indexState{revision: snap.Revision(), keys: st.keys, bytes: st.bytes}
	edit := st.keys.Edit()
	for rec := range snap.Changed(q.reader.version.Definition.Prefix, st.revision) {
		h := hashOf(q, rec, place)
		if h == 0 {
			continue
		}
		key := bucket(h) + rec.Key
		if _, known := edit.Get(key); !known {
			edit.Put(key, 0, key[bucketLength:])
			next.bytes += len(key) + entryBytes
		}
	}
	next.keys = edit.Tree()
	return next
}

// forget drops entries that were found to be stale in st, unless the index has moved on.
func (ix *fieldIndex) forget(st *indexState, stale []string) {
	if len(stale) == 0 {
		return
	}
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if ix.state.Load() != st {
		return
	}
	next := &indexState{revision: st.revision, bytes: st.bytes}
	edit := st.keys.Edit()
	for _, key := range stale {
		if edit.Delete(key) {
			next.bytes -= len(key) + entryBytes
		}
	}
	next.keys = edit.Tree()
	ix.state.Store(next)
}

// find returns the index of a field, which may have to be made yet.
func (x *indexes) find(v *resource.Version, place int) *fieldIndex {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := indexKey{v, place}
	ix := x.byField[key]
	if ix == nil {
		ix = &fieldIndex{place: place}
		if x.byField == nil {
			x.byField = map[indexKey]*fieldIndex{}
		}
		x.byField[key] = ix
		if x.sweeper == nil {
			x.sweeper = time.AfterFunc(indexIdle, func() { x.sweep(time.Now()) })
		}
	}
	ix.used.Store(time.Now().Unix())
	return ix
}

// sweep drops the indexes that nobody has used for a while, and comes back if there are others.
func (x *indexes) sweep(now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, ix := range x.byField {
		if now.Unix()-ix.used.Load() >= int64(indexIdle/time.Second) {
			delete(x.byField, key)
		}
	}
	if len(x.byField) == 0 {
		x.sweeper = nil
	} else {
		x.sweeper.Reset(indexIdle)
	}
}

// trim drops the least recently used indexes but one until all fit.
func (x *indexes) trim(keep *fieldIndex) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for len(x.byField) > 1 {
		bytes, oldest := 0, indexKey{}
		for key, ix := range x.byField {
			if st := ix.state.Load(); st != nil {
				bytes += st.bytes
			}
			if old := x.byField[oldest]; ix != keep && (old == nil || ix.used.Load() < old.used.Load()) {
				oldest = key
			}
		}
		if bytes <= maxIndexBytes {
			return
		}
		delete(x.byField, oldest)
	}
}
