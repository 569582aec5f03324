// Package record reads stored records: the values that the engine derives from a record, and its object at any version
// of the kind. Conversions are cached, and the cached results of conversion webhooks are checked.
package record

import (
	"hash/maphash"
	"sync/atomic"
	"weak"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Object is one object at one version. Its bytes are shared and must not be modified.
type Object struct {
	Version  *resource.Version
	Revision int64 // the object's resourceVersion
	// Record is the stored record of the object, or an equivalent record. It caches the values derived from the
	// object.
	Record *storage.Record
}

// NewObject returns an Object that is not stored.
func NewObject(v *resource.Version, revision int64, p object.Packed) Object {
	return Object{Version: v, Revision: revision, Record: FromPacked(p)}
}

// FromPacked returns a record that is not stored.
func FromPacked(p object.Packed) *storage.Record {
	rec := &storage.Record{Value: p.JSON()}
	rec.Derived.Store(newDerived(p))
	return rec
}

// Packed returns the object in its stored form.
func (o Object) Packed() object.Packed { return Packed(o.Record) }

// AppendJSON appends the object's JSON at its version.
func (o Object) AppendJSON(dst []byte) []byte {
	return o.Packed().AppendJSONAs(dst, o.Version.APIVersion, o.Revision)
}

// AppendItem appends the object's JSON as an item of a list. As in upstream, items of built-in kinds lack
// apiVersion and kind.
func (o Object) AppendItem(dst []byte) []byte {
	if o.Version.Schema != nil {
		return o.AppendJSON(dst)
	}
	return o.Packed().AppendUntyped(dst, o.Revision)
}

// Meta returns the object's metadata, scanned at most once per record.
func (o Object) Meta() *object.Meta { return MetadataOf(o.Record).Meta }

// Protobuf returns the object's protobuf message at its version. The caller must not modify the message. The
// message is cached until the next garbage collection, so the response to a write and the watches of the object
// share it.
func (o Object) Protobuf() ([]byte, error) {
	d := derive(o.Record)
	if cached := d.message.Load(); cached != nil {
		if m := cached.Value(); m != nil && m.version == o.Version && m.revision == o.Revision {
			return m.bytes, nil
		}
	}
	bytes, err := o.Version.Type.Protobuf(o.AppendJSON(nil))
	if err != nil {
		return nil, err
	}
	cached := weak.Make(&message{o.Version, o.Revision, bytes})
	d.message.Store(&cached)
	return bytes, nil
}

// message is the protobuf message of an object at a version and revision.
type message struct {
	version  *resource.Version
	revision int64
	bytes    []byte
}

// Tree decodes the object. The caller owns the result.
func (o Object) Tree() (object.Tree, error) {
	t, err := o.Packed().Tree(o.Revision)
	if err == nil {
		t["apiVersion"] = o.Version.APIVersion
	}
	return t, err
}

// derived caches the values that the engine derives from a Record. Record.Derived holds a pointer to it. For a
// written record, the write sets the header. For a loaded record, the header is read on first use.
type derived struct {
	header      object.Header
	fingerprint atomic.Uint64
	metadata    atomic.Pointer[Metadata]
	fields      atomic.Pointer[fieldValues]
	message     atomic.Pointer[weak.Pointer[message]]
	servedAs    atomic.Pointer[resource.Version] // a version at which the stored bytes are served unchanged
}

// Metadata is the part of an object that selectors use.
type Metadata struct {
	Meta   *object.Meta
	Labels labels.Labels // meta.Labels as an interface value, to avoid repeated conversions
	Bloom  uint64        // a Bloom filter of the label keys and the key-value pairs
}

// derive returns the values derived from a record. It computes them once.
func derive(rec *storage.Record) *derived {
	if d, ok := rec.Derived.Load().(*derived); ok {
		return d
	}
	d := newDerived(object.Unpack(rec.Value))
	rec.Derived.Store(d)
	return d
}

func newDerived(p object.Packed) *derived {
	d := &derived{header: p.Header}
	d.fingerprint.Store(p.Fingerprint())
	return d
}

// Served returns the object in rec at v if an earlier reader has found that the stored bytes are served unchanged.
func Served(rec *storage.Record, v *resource.Version) (Object, bool) {
	d, ok := rec.Derived.Load().(*derived)
	return Object{Version: v, Revision: rec.Modified, Record: rec}, ok && d.servedAs.Load() == v
}

// Packed returns the object in a record.
func Packed(rec *storage.Record) object.Packed {
	d := derive(rec)
	return d.header.WithJSON(rec.Value, d.fingerprint.Load())
}

// MetadataOf returns a record's metadata. It parses the metadata once.
func MetadataOf(rec *storage.Record) *Metadata {
	d := derive(rec)
	if m := d.metadata.Load(); m != nil {
		return m
	}
	meta, err := object.ScanMeta(rec.Value)
	if err != nil {
		meta = &object.Meta{}
	}
	m := &Metadata{Meta: meta, Labels: meta.Labels}
	for _, l := range meta.Labels {
		m.Bloom |= KeyBits(l.Key) | PairBits(l.Key, l.Value)
	}
	d.metadata.Store(m)
	return m
}

var hashSeed = maphash.MakeSeed()

// KeyBits returns the bit for a label key in the Bloom filter.
func KeyBits(key string) uint64 { return 1 << (maphash.String(hashSeed, key) & 63) }

// PairBits returns the two bits for a label's key and value in the Bloom filter. Two bits make it rare that a
// selector for a value compares labels in vain.
func PairBits(key, value string) uint64 {
	h := maphash.String(hashSeed, key) ^ maphash.String(hashSeed, value)*0x9e3779b97f4a7c15
	return 1<<(h>>58) | 1<<(h>>52&63)
}
