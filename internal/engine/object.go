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

// ObjectOf is an object that is not stored.
func ObjectOf(v *resource.Version, revision int64, p object.Packed) Object {
	return Object{Version: v, Revision: revision, Record: recordOf(p)}
}

func recordOf(p object.Packed) *storage.Record {
	rec := &storage.Record{Value: p.JSON()}
	rec.Derived.Store(newDerived(p))
	return rec
}

// Packed is the object as it lies in storage.
func (o Object) Packed() object.Packed { return packed(o.Record) }

// AppendJSON appends the object's JSON at its version.
func (o Object) AppendJSON(dst []byte) []byte {
	return o.Packed().AppendJSONAs(dst, o.Version.APIVersion, o.Revision)
}

// AppendItem appends the object's JSON as it stands in a list: there the items of built-in kinds, other than those of custom
// ones, do not say their kind again.
func (o Object) AppendItem(dst []byte) []byte {
	if o.Version.Definition.Custom != nil {
		return o.AppendJSON(dst)
	}
	return o.Packed().AppendUntyped(dst, o.Revision)
}

// Meta returns the object's metadata, scanned at most once per record.
func (o Object) Meta() *object.Meta { return metaOf(o.Record).meta }

// Protobuf is the object's protobuf message at its version, not to be modified. It is made once for all who want it about the same
// time, as the answer to a write and the watches that tell of it: it stays until garbage is collected.
func (o Object) Protobuf() ([]byte, error) {
	d := derive(o.Record)
	if kept := d.message.Load(); kept != nil {
		if m := kept.Value(); m != nil && m.version == o.Version && m.revision == o.Revision {
			return m.bytes, nil
		}
	}
	bytes, err := o.Version.Type.Protobuf(o.AppendJSON(nil))
	if err != nil {
		return nil, err
	}
	kept := weak.Make(&message{o.Version, o.Revision, bytes})
	d.message.Store(&kept)
	return bytes, nil
}

// message is the protobuf form of an object, as its version is served, told of at a revision.
type message struct {
	version  *resource.Version
	revision int64
	bytes    []byte
}

// Tree decodes the object into a fresh tree.
func (o Object) Tree() (object.Tree, error) {
	t, err := o.Packed().Tree(o.Revision)
	if err == nil {
		t["apiVersion"] = o.Version.APIVersion
	}
	return t, err
}

// derived is what the engine keeps in a Record's Derived, always by pointer. Who writes an object knows its header; of one
// that was loaded it is read when it is needed.
type derived struct {
	header      object.Header
	fingerprint atomic.Uint64
	metadata    atomic.Pointer[metadata]
	fields      atomic.Pointer[fieldValues]
	message     atomic.Pointer[weak.Pointer[message]]
	servedAs      atomic.Pointer[resource.Version] // one at which the bytes are served as they are
}

// metadata is what selectors go by.
type metadata struct {
	meta   *object.Meta
	labels labels.Labels // meta.Labels, put into an interface once
	bloom  uint64        // a Bloom filter of the labels and their keys
}

// fieldValues are the values of the selectable fields of one version.
type fieldValues struct {
	version *resource.Version
	values  []string
}

// derive returns what is known of a record, computed once.
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

// packed is the object in a record.
func packed(rec *storage.Record) object.Packed {
	d := derive(rec)
	return d.header.Of(rec.Value, d.fingerprint.Load())
}

// metaOf returns a record's metadata, scanned once.
func metaOf(rec *storage.Record) *metadata {
	d := derive(rec)
	if m := d.metadata.Load(); m != nil {
		return m
	}
	found, err := object.ScanMeta(rec.Value)
	if err != nil {
		found = &object.Meta{}
	}
	m := &metadata{meta: found, labels: found.Labels}
	for _, l := range found.Labels {
		m.bloom |= keyBits(l.Key) | pairBits(l.Key, l.Value)
	}
	d.metadata.Store(m)
	return m
}

var hashSeed = maphash.MakeSeed()

func keyBits(key string) uint64 { return 1 << (maphash.String(hashSeed, key) & 63) }

// pairBits has two bits, for a selector that names a value shall rarely look closer in vain.
func pairBits(key, value string) uint64 {
	h := maphash.String(hashSeed, key) ^ maphash.String(hashSeed, value)*0x9e3779b97f4a7c15
	return 1<<(h>>58) | 1<<(h>>52&63)
}
