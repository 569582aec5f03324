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
	// indexMinObjects is how many objects make a list by a field worth an index.
	indexMinObjects = 256
	// indexMinFactor is how many times fewer objects an index must name than there are.
	indexMinFactor = 4
	// maxIndexBytes bounds what all indexes take together, the least recently used one going first.
	maxIndexBytes = 64 << 20
	// indexIdleTimeout is how long an index is kept that nobody uses.
	indexIdleTimeout = 10 * time.Minute
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
	evictTimer *time.Timer
}

type indexKey struct {
	version *resource.Version
	field   int // in version.SelectableFields
}

// fieldIndex is the index of one field.
type fieldIndex struct {
	field int
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
	tooLarge bool // takes too much: there are no keys, and all is walked
}

// records yields the records from which a list is made, in the order of their keys: those that an index names,
// if one helps, or all.
func (q *query) records(snap *storage.Snapshot, after string) iter.Seq[*storage.Record] {
	ix, st, value := q.bestIndex(snap)
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
			if rec == nil || fieldHash(q, rec, ix.field) != hash {
				stale = append(stale, bucket+key)
				return true
			}
			return yield(rec)
		})
		ix.removeStale(st, stale)
	}
}

// bestIndex finds the index that names the fewest objects, as of snap; nil if it is better to walk.
func (q *query) bestIndex(snap *storage.Snapshot) (ix *fieldIndex, st *indexState, value string) {
	if q.paths == nil || q.reader.asStored || q.reader.mayFail() {
		return nil, nil, ""
	}
	least := snap.Count(q.prefix, "")
	if least < indexMinObjects {
		return nil, nil, ""
	}
	least /= indexMinFactor
	for _, term := range q.fields {
		if term.field < 0 || term.not || term.value == "" {
			continue
		}
		candidate := q.indexes.find(q.reader.version, term.field)
		state := candidate.atSnapshot(q, snap)
		if state == nil {
			continue
		}
		if n := state.keys.Count(bucket(hashValue(term.value))+q.prefix, ""); n <= least {
			ix, st, value, least = candidate, state, term.value, n
		}
	}
	if ix != nil {
		q.indexes.evictLeastRecent(ix)
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
	return maphash.String(hashSeed, value) | 1
}

// fieldHash is of the value that a record has in a selectable field, 0 if it has none.
func fieldHash(q *query, rec *storage.Record, place int) uint64 {
	values := q.values(rec)
	if values == nil {
		return 0
	}
	return hashValue(values[place])
}

// atSnapshot returns the index as of snap, making it or bringing it up to date; nil if it is newer than snap, or too large.
func (ix *fieldIndex) atSnapshot(q *query, snap *storage.Snapshot) *indexState {
	st := ix.state.Load()
	if st == nil || st.revision < snap.Revision() {
		st = ix.advance(q, snap)
	}
	if st.revision != snap.Revision() || st.tooLarge {
		return nil
	}
	return st
}

func (ix *fieldIndex) advance(q *query, snap *storage.Snapshot) *indexState {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	st := ix.state.Load()
	switch {
	case st == nil:
		st = ix.build(q, snap)
	case st.revision >= snap.Revision():
		return st
	case st.tooLarge:
		st = &indexState{revision: snap.Revision(), tooLarge: true}
	default:
		if st = st.updated(q, snap, ix.field); st.keys.Len() > 2*snap.Count(q.reader.version.Definition.Prefix, "")+indexMinObjects {
			st = ix.build(q, snap)
		}
	}
	if st.bytes > maxIndexBytes {
		st = &indexState{revision: st.revision, tooLarge: true}
	}
	ix.state.Store(st)
	return st
}

// build makes the index of a snapshot.
func (ix *fieldIndex) build(q *query, snap *storage.Snapshot) *indexState {
	st := &indexState{revision: snap.Revision()}
	var keys []string
	for rec := range snap.Walk(q.reader.version.Definition.Prefix, "") {
		if h := fieldHash(q, rec, ix.field); h != 0 {
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

// updated is st with what has been written until snap.
func (st *indexState) updated(q *query, snap *storage.Snapshot, place int) *indexState {
	next := &indexState{revision: snap.Revision(), keys: st.keys, bytes: st.bytes}
	edit := st.keys.Edit()
	for rec := range snap.Changed(q.reader.version.Definition.Prefix, st.revision) {
		h := fieldHash(q, rec, place)
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

// removeStale drops entries that were found to be stale in st, unless the index has moved on.
func (ix *fieldIndex) removeStale(st *indexState, stale []string) {
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
		ix = &fieldIndex{field: place}
		if x.byField == nil {
			x.byField = map[indexKey]*fieldIndex{}
		}
		x.byField[key] = ix
		if x.evictTimer == nil {
			x.evictTimer = time.AfterFunc(indexIdleTimeout, func() { x.evictIdle(time.Now()) })
		}
	}
	ix.used.Store(time.Now().Unix())
	return ix
}

// evictIdle drops the indexes that nobody has used for a while, and comes back if there are others.
func (x *indexes) evictIdle(now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for key, ix := range x.byField {
		if now.Unix()-ix.used.Load() >= int64(indexIdleTimeout/time.Second) {
			delete(x.byField, key)
		}
	}
	if len(x.byField) == 0 {
		x.evictTimer = nil
	} else {
		x.evictTimer.Reset(indexIdleTimeout)
	}
}

// evictLeastRecent drops the least recently used indexes but one until all fit.
func (x *indexes) evictLeastRecent(keep *fieldIndex) {
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
