package read

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
	// indexMinObjects is the minimum number of objects for which a list by a field uses an index.
	indexMinObjects = 256
	// indexMinFactor is the minimum ratio of the number of all objects to the number of objects that an index
	// yields. Below it a list walks all objects.
	indexMinFactor = 4
	// maxIndexBytes limits the size of all indexes. The least recently used index is evicted first.
	maxIndexBytes = 64 << 20
	// indexIdleTimeout is how long an unused index is kept.
	indexIdleTimeout = 10 * time.Minute
	// entryBytes is the approximate size of an index entry without its key.
	entryBytes = 72
)

// indexes holds indexes over the values of selectable fields. Writes do not update an index. A list that selects by
// a field first updates the field's index to the list's snapshot, using the changes since the last use. An index
// yields all matching records, but may also yield records that no longer match. So the list looks up each record in
// its snapshot and evaluates the selector again. The zero value is ready to use.
type indexes struct {
	mu         sync.Mutex
	byField    map[indexKey]*fieldIndex
	evictTimer *time.Timer
}

var indexSeed = maphash.MakeSeed()

type indexKey struct {
	version *resource.Version
	field   int // index in version.SelectableFields
}

// fieldIndex is the index of one field.
type fieldIndex struct {
	field int          // index in version.SelectableFields
	used  atomic.Int64 // time of the last use, in Unix seconds
	state atomic.Pointer[indexState]
	mu    sync.Mutex // held while the next state is built
}

// indexState is an index at one revision. It is immutable.
type indexState struct {
	revision int64
	// keys holds storage keys, each prefixed with the bucket of its value's hash. Objects without a value are left
	// out. Outdated entries may remain, of objects that have been deleted or have another value now.
	keys     tree.Tree[string]
	bytes    int
	tooLarge bool // the size limit is exceeded: keys is empty and lists walk all objects
}

// records yields the candidate records of a list, ordered by key. If a suitable index exists, these are the records
// of the index, otherwise all records.
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

// bestIndex returns the index that yields the fewest objects, and its state at snap. ix is nil if it is better to
// walk all objects.
func (q *query) bestIndex(snap *storage.Snapshot) (ix *fieldIndex, st *indexState, value string) {
	if q.paths == nil || q.view.AsStored || q.view.MayFail() {
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
		candidate := q.indexes.find(q.view.Version, term.field)
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

// bucketLength is the length in bytes of every bucket.
const bucketLength = 8

// bucket returns the prefix of the index entries of all values with the given hash.
func bucket(hash uint64) string {
	var b [bucketLength]byte
	binary.BigEndian.PutUint64(b[:], hash)
	return string(b[:])
}

// hashValue returns the hash of a value. Only the hash of "" is 0.
func hashValue(value string) uint64 {
	if value == "" {
		return 0
	}
	return maphash.String(indexSeed, value) | 1
}

// fieldHash returns the hash of a record's value in a selectable field. The hash of a missing value is 0.
func fieldHash(q *query, rec *storage.Record, field int) uint64 {
	values := q.view.Fields(rec, q.paths)
	if values == nil {
		return 0
	}
	return hashValue(values[field])
}

// atSnapshot returns the state of the index at snap, which it builds or updates if necessary. It returns nil if the
// index is newer than snap or too large.
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

// advance updates the index to snap, unless it is already there.
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
		st = st.updated(q, snap, ix.field)
		if st.keys.Len() > 2*snap.Count(q.view.Version.Definition.Prefix, "")+indexMinObjects {
			st = ix.build(q, snap)
		}
	}
	if st.bytes > maxIndexBytes {
		st = &indexState{revision: st.revision, tooLarge: true}
	}
	ix.state.Store(st)
	return st
}

// build returns the state of the index for a snapshot.
func (ix *fieldIndex) build(q *query, snap *storage.Snapshot) *indexState {
	st := &indexState{revision: snap.Revision()}
	var keys []string
	for rec := range snap.Walk(q.view.Version.Definition.Prefix, "") {
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

// updated returns a copy of st that includes the changes up to snap.
func (st *indexState) updated(q *query, snap *storage.Snapshot, field int) *indexState {
	next := &indexState{revision: snap.Revision(), keys: st.keys, bytes: st.bytes}
	edit := st.keys.Edit()
	for rec := range snap.Changed(q.view.Version.Definition.Prefix, st.revision) {
		h := fieldHash(q, rec, field)
		if h == 0 {
			continue
		}
		key := bucket(h) + rec.Key
		if _, exists := edit.Get(key); !exists {
			edit.Put(key, 0, key[bucketLength:])
			next.bytes += len(key) + entryBytes
		}
	}
	next.keys = edit.Tree()
	return next
}

// removeStale removes the stale entries that a list has found in st. It does nothing if ix has a newer state by
// then.
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

// find returns the index of a field. If none exists, it creates an empty one.
func (x *indexes) find(v *resource.Version, field int) *fieldIndex {
	x.mu.Lock()
	defer x.mu.Unlock()
	key := indexKey{v, field}
	ix := x.byField[key]
	if ix == nil {
		ix = &fieldIndex{field: field}
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

// evictIdle evicts the indexes that have not been used for indexIdleTimeout. If indexes remain, it schedules its
// next run.
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

// evictLeastRecent evicts the least recently used indexes until the size of all indexes is at most maxIndexBytes.
// It never evicts the index keep.
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
