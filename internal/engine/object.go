package engine

import (
	"hash/maphash"
	"sync/atomic"
	"weak"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// ObjectOf returns an Object that is not stored.
func ObjectOf(v *resource.Version, revision int64, p object.Packed) Object {
	return Object{Version: v, Revision: revision, Record: recordOf(p)}
}

func recordOf(p object.Packed) *storage.Record {
	rec := &storage.Record{Value: p.JSON()}
	rec.Derived.Store(newDerived(p))
	return rec
}

// Packed returns the object in its stored form.
func (o Object) Packed() object.Packed { return packed(o.Record) }

// AppendJSON appends the object's JSON at its version.
func (o Object) AppendJSON(dst []byte) []byte {
	return o.Packed().AppendJSONAs(dst, o.Version.APIVersion, o.Revision)
}

// AppendItem appends the object's JSON as an item of a list. As in upstream, items of built-in kinds lack
// apiVersion and kind.
func (o Object) AppendItem(dst []byte) []byte {
	if o.Version.Definition.Custom != nil {
		return o.AppendJSON(dst)
	}
	return o.Packed().AppendUntyped(dst, o.Revision)
}

// Meta returns the object's metadata, scanned at most once per record.
func (o Object) Meta() *object.Meta { return metaOf(o.Record).meta }

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
	metadata    atomic.Pointer[metadata]
	fields      atomic.Pointer[fieldValues]
	message     atomic.Pointer[weak.Pointer[message]]
	servedAs    atomic.Pointer[resource.Version] // a version at which the stored bytes are served unchanged
}

// metadata is the part of an object that selectors use.
type metadata struct {
	meta   *object.Meta
	labels labels.Labels // meta.Labels as an interface value, to avoid repeated conversions
	bloom  uint64        // a Bloom filter of the label keys and the key-value pairs
}

// fieldValues are the values of the selectable fields at one version.
type fieldValues struct {
	version *resource.Version
	values  []string
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

// packed returns the object in a record.
func packed(rec *storage.Record) object.Packed {
	d := derive(rec)
	return d.header.WithJSON(rec.Value, d.fingerprint.Load())
}

// metaOf returns a record's metadata. It parses the metadata once.
func metaOf(rec *storage.Record) *metadata {
	d := derive(rec)
	if m := d.metadata.Load(); m != nil {
		return m
	}
	meta, err := object.ScanMeta(rec.Value)
	if err != nil {
		meta = &object.Meta{}
	}
	m := &metadata{meta: meta, labels: meta.Labels}
	for _, l := range meta.Labels {
		m.bloom |= keyBits(l.Key) | pairBits(l.Key, l.Value)
	}
	d.metadata.Store(m)
	return m
}

var hashSeed = maphash.MakeSeed()

// keyBits returns the bit for a label key in the Bloom filter.
func keyBits(key string) uint64 { return 1 << (maphash.String(hashSeed, key) & 63) }

// pairBits returns the two bits for a label's key and value in the Bloom filter. Two bits make it rare that a
// selector for a value compares labels in vain.
func pairBits(key, value string) uint64 {
	h := maphash.String(hashSeed, key) ^ maphash.String(hashSeed, value)*0x9e3779b97f4a7c15
	return 1<<(h>>58) | 1<<(h>>52&63)
}
