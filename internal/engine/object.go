package engine

import (
	"hash/maphash"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// AppendJSON appends the object's JSON at its version.
func (o Object) AppendJSON(dst []byte) []byte {
	return o.Packed.AppendJSONAs(dst, o.Version.APIVersion, o.Revision)
}

// AppendItem appends the object's JSON as it stands in a list: there the items of built-in kinds, other than those of custom
// ones, do not say their kind again.
func (o Object) AppendItem(dst []byte) []byte {
	if o.Version.Definition.Custom != nil {
		return o.AppendJSON(dst)
	}
	return o.Packed.AppendUntyped(dst, o.Revision)
}

// Meta returns the object's metadata, scanned at most once per record.
func (o Object) Meta() *object.Meta {
	if o.Record != nil {
		return derive(o.Record).meta
	}
	return scan(o.Packed)
}

// Tree decodes the object into a fresh tree.
func (o Object) Tree() (object.Tree, error) {
	t, err := o.Packed.Tree(o.Revision)
	if err == nil {
		t["apiVersion"] = o.Version.APIVersion
	}
	return t, err
}

// derived is what the engine keeps in a Record's Derived, always by pointer.
type derived struct {
	meta   *object.Meta
	labels labels.Labels // meta.Labels, put into an interface once
	marks  uint64        // a Bloom filter of the labels and their keys
	fields atomic.Pointer[fieldValues]
	passes atomic.Pointer[resource.Version] // one at which the bytes are served as they are
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
	d := newDerived(object.Packed(rec.Value))
	rec.Derived.Store(d)
	return d
}

func newDerived(p object.Packed) *derived {
	m := scan(p)
	d := &derived{meta: m, labels: m.Labels}
	for _, l := range m.Labels {
		d.marks |= keyMark(l.Key) | pairMark(l.Key, l.Value)
	}
	return d
}

func scan(p object.Packed) *object.Meta {
	m, err := object.ScanMeta(p.JSON())
	if err != nil {
		return &object.Meta{}
	}
	return m
}

var markSeed = maphash.MakeSeed()

func keyMark(key string) uint64 { return 1 << (maphash.String(markSeed, key) & 63) }

// pairMark has two bits, for a selector that names a value shall rarely look closer in vain.
func pairMark(key, value string) uint64 {
	h := maphash.String(markSeed, key) ^ maphash.String(markSeed, value)*0x9e3779b97f4a7c15
	return 1<<(h>>58) | 1<<(h>>52&63)
}
