// Package format encodes the keys and values of the Pebble store in a data directory, and its file HEAD. It must not
// import Pebble.
package format

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// The engine holds three kinds of keys. Numbers are big-endian in keys.
//
//	f                     the format, formatName
//	r REVISION            an index entry: the change at REVISION
//	v KEY 0 ^REVISION     a version: the state of KEY written at REVISION, newest first
//
// The values of index entries and versions begin with a CRC-32C over the engine's key and the rest of the
// value. It detects damage and values under the wrong key. The oldest index entry is the oldest revision that
// can be read. Earlier revisions have been compacted.
//
// Stores in the previous format can be read. Its values begin with a header (see cutHeader).
const (
	Key    = "f"
	Name   = "trellis log 2"
	NameV1 = "trellis log 1"

	IndexPrefix   = 'r'
	VersionPrefix = 'v'
)

// FirstRevision is the revision of an empty store. 0 has a special meaning in the Kubernetes API.
const FirstRevision = 1

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errChecksum = errors.New("the checksum does not match")

// Tally holds the totals of a history. An index entry contains the tally at its revision.
type Tally struct {
	Revision int64
	Bytes    int64  // cost of all events ever written
	Live     int64  // number of live keys
	digest   uint64 // XOR of the fingerprints of all live keys
}

// Count adds an event to the totals.
func (t *Tally) Count(e *storage.Event) {
	t.Revision = e.Revision
	t.Bytes += e.HistoryCost()
	if e.Previous != nil {
		t.Live--
		t.digest ^= fingerprint(e.Key, e.Previous.Modified)
	}
	if e.Record != nil {
		t.Add(e.Key, e.Revision)
	}
}

// Add adds a live key, whose state was written at the given revision.
func (t *Tally) Add(key string, revision int64) {
	t.Live++
	t.digest ^= fingerprint(key, revision)
}

// fingerprint returns a hash of a key and the revision of its state. It uses the finaliser of SplitMix64.
func fingerprint(key string, revision int64) uint64 {
	x := uint64(revision)*0x9e3779b97f4a7c15 + uint64(crc32.Checksum([]byte(key), castagnoli))<<20
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Change is an index entry.
type Change struct {
	Tally
	Key      string
	Previous int64 // revision of the previous state; 0 means none
	Deleted  bool
}

// AppendIndexKey appends the engine key of the index entry at a revision.
func AppendIndexKey(dst []byte, revision int64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, IndexPrefix), uint64(revision))
}

// AppendVersionKey appends the engine key of the state of key that was written at a revision.
func AppendVersionKey(dst []byte, key string, revision int64) []byte {
	dst = append(append(append(dst, VersionPrefix), key...), 0)
	return binary.BigEndian.AppendUint64(dst, ^uint64(revision))
}

// IndexKeySize is the length of an index entry's engine key.
const IndexKeySize = 9

// RevisionOfIndexKey returns the revision in the engine key of an index entry.
func RevisionOfIndexKey(k []byte) int64 { return int64(binary.BigEndian.Uint64(k[1:])) }

// cutVersionKey splits a version's engine key. The returned key shares k's memory.
func cutVersionKey(k []byte) (key []byte, revision int64, ok bool) {
	at := len(k) - 9
	if at < 2 || k[0] != VersionPrefix || k[at] != 0 {
		return nil, 0, false
	}
	revision = int64(^binary.BigEndian.Uint64(k[at+1:]))
	return k[1:at], revision, revision > 0
}

// Seal writes the checksum of engine key k and value v[4:] into v[:4].
func Seal(k, v []byte) { binary.LittleEndian.PutUint32(v, checksum(k, v[4:])) }

// unseal verifies the checksum written by seal and returns the rest of the value.
func unseal(k, v []byte) ([]byte, error) {
	if len(v) < 5 || binary.LittleEndian.Uint32(v) != checksum(k, v[4:]) {
		return nil, errChecksum
	}
	return v[4:], nil
}

func checksum(k, v []byte) uint32 {
	return crc32.Update(crc32.Checksum(k, castagnoli), castagnoli, v)
}

// Kinds of version and index entries.
const (
	kindLive    = 1
	kindDeleted = 2
)

// AppendVersion appends the value of a version without its checksum and without r.Value. A nil r means that the key
// was deleted.
func AppendVersion(dst []byte, r *storage.Record) []byte {
	dst = append(dst, 0, 0, 0, 0)
	if r == nil {
		return append(dst, kindDeleted)
	}
	dst = append(dst, kindLive)
	dst = binary.AppendUvarint(dst, uint64(r.Created))
	var expires uint64
	if !r.Expires.IsZero() {
		expires = uint64(r.Expires.UnixMilli())
	}
	return binary.AppendUvarint(dst, expires)
}

// DecodeVersion returns the record stored under engine key k, or nil if the key was deleted at that revision. The
// record does not share memory with k or v.
func DecodeVersion(k, v []byte) (*storage.Record, error) {
	key, revision, ok := cutVersionKey(k)
	if !ok {
		return nil, errors.New("not the key of a version")
	}
	v, err := unseal(k, v)
	if err != nil {
		return nil, err
	}
	if v[0] == kindDeleted && len(v) == 1 {
		return nil, nil
	}
	created, n := binary.Uvarint(v[1:])
	if v[0] != kindLive || n <= 0 || created == 0 || created > uint64(revision) {
		return nil, errors.New("not a version")
	}
	expires, m := binary.Uvarint(v[1+n:])
	if m <= 0 || expires > math.MaxInt64 {
		return nil, errors.New("not a version")
	}
	r := &storage.Record{
		Key: string(key), Created: int64(created), Modified: revision,
		Value: bytes.Clone(cutHeader(v[1+n+m:])),
	}
	if expires != 0 {
		r.Expires = time.UnixMilli(int64(expires))
	}
	return r, nil
}

// headerSize is the size of the header before an object's JSON in the previous format. Its first byte is 1, and
// bytes 12 to 15 contain the length of the JSON.
const headerSize = 24

func cutHeader(value []byte) []byte {
	if len(value) < headerSize || value[0] != 1 ||
		int(binary.LittleEndian.Uint32(value[12:])) != len(value)-headerSize {
		return value
	}
	return value[headerSize:]
}

// AppendChange appends the value of an index entry without its checksum.
func AppendChange(dst []byte, c *Change) []byte {
	kind := byte(kindLive)
	if c.Deleted {
		kind = kindDeleted
	}
	dst = append(dst, 0, 0, 0, 0, kind)
	dst = binary.AppendUvarint(dst, uint64(c.Previous))
	dst = binary.AppendUvarint(dst, uint64(c.Bytes))
	dst = binary.AppendUvarint(dst, uint64(c.Live))
	dst = binary.LittleEndian.AppendUint64(dst, c.digest)
	return append(dst, c.Key...)
}

// DecodeChange returns the index entry stored under engine key k. It does not share memory with k or v.
func DecodeChange(k, v []byte) (c Change, err error) {
	if len(k) != 9 || k[0] != IndexPrefix {
		return c, errors.New("not the key of an index entry")
	}
	if v, err = unseal(k, v); err != nil {
		return c, err
	}
	c.Revision = RevisionOfIndexKey(k)
	c.Deleted = v[0] == kindDeleted
	if v[0] != kindLive && !c.Deleted {
		return c, errors.New("not an index entry")
	}
	v = v[1:]
	for _, field := range []*int64{&c.Previous, &c.Bytes, &c.Live} {
		x, n := binary.Uvarint(v)
		if n <= 0 || x > math.MaxInt64 {
			return c, errors.New("not an index entry")
		}
		*field, v = int64(x), v[n:]
	}
	if len(v) < 8 {
		return c, errors.New("not an index entry")
	}
	c.digest = binary.LittleEndian.Uint64(v)
	c.Key = string(v[8:])
	return c, nil
}
