package resource

import (
	"fmt"
	"reflect"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/common"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/weight"
)

// GoType is how a kind uses its Go type: a built-in one that in k8s.io/api.
type GoType struct {
	New     func() runtime.Object // a fresh, empty object
	NewList func() runtime.Object
	// OpenAPI returns the generated schemas of the type and what it refers to, and maybe of others; the same function for all
	// types of a document.
	OpenAPI func(common.ReferenceCallback) map[string]common.OpenAPIDefinition
	// Default fills in what obj, of this type, leaves out; what is there it leaves alone. nil: nothing.
	Default func(obj runtime.Object)
	// Internal gives the internal form of obj, of this type, and External the other way round, with apiVersion and kind. The
	// two forms share memory: neither may be modified while the other is in use. nil for a kind without a Strategy.
	Internal func(obj runtime.Object) (Internal, error)
	External func(obj Internal) (runtime.Object, error)
	// NoProtobuf says that the type has no protobuf form.
	NoProtobuf bool
	// Decoder, if not nil, decodes in place of byType, which it may use for the whole or for parts.
	Decoder func(json []byte, byType func([]byte) (object.Tree, []string, error)) (t object.Tree, strict []string, err error)

	weights atomic.Pointer[weight.Table] // nil until first used
}

// Weights returns the memory that the parts of an object take.
func (g *GoType) Weights() *weight.Table {
	if t := g.weights.Load(); t != nil {
		return t
	}
	t := weight.Of(reflect.TypeOf(g.New()).Elem())
	g.weights.Store(t)
	return t
}

// Empty is an object of a built-in kind of which nothing is set, as it is encoded. It is never modified.
func (v *Version) Empty() (object.Tree, error) {
	if t := v.empty.Load(); t != nil {
		return *t, nil
	}
	t, err := ToTree(v.Type.New())
	if err == nil {
		t["apiVersion"], t["kind"] = v.APIVersion, v.Definition.Names.Kind
		v.empty.Store(&t)
	}
	return t, err
}

// Decoded is what a client has sent of an object. The two forms of it share nothing that can be modified.
type Decoded struct {
	Tree     object.Tree
	Internal Internal // of a kind with a Strategy; nil where a Decoder has made the tree
	Strict   []string // unknown and duplicate fields in order of appearance: `unknown field "spec.foo"`
}

// Decode reads JSON into the Go type, so that types are checked and unknown
// fields dropped, and gives back the tree as upstream would serve it, with defaults. The error is worded as
// encoding/json words it. apiVersion and kind are as the body has them, which may be not at all.
func (g *GoType) Decode(json []byte) (d Decoded, err error) {
	if g.Decoder == nil {
		return g.byType(json)
	}
	d.Tree, d.Strict, err = g.Decoder(json, func(json []byte) (object.Tree, []string, error) {
		d, err := g.byType(json)
		return d.Tree, d.Strict, err
	})
	return d, err
}

func (g *GoType) byType(json []byte) (Decoded, error) {
	obj := g.New()
	problems, err := kjson.UnmarshalStrict(json, obj)
	return g.decoded(obj, problems, err)
}

// decoded fills in the defaults of obj. Its tree is as it comes out of its internal form: that may have a field in another place.
func (g *GoType) decoded(obj runtime.Object, problems []error, err error) (d Decoded, _ error) {
	if err != nil {
		return d, err
	}
	for _, p := range problems {
		d.Strict = append(d.Strict, p.Error())
	}
	if g.Default != nil {
		g.Default(obj)
	}
	if g.Internal == nil {
		d.Tree, err = ToTree(obj)
		return d, err
	}
	sent, ok := obj.GetObjectKind().(*metav1.TypeMeta)
	if !ok {
		return d, fmt.Errorf("resource: %T has no TypeMeta", obj)
	}
	said := *sent // as it was sent, which may be no version at all
	if d.Internal, err = g.Internal(obj); err != nil {
		return d, err
	}
	out, err := g.External(d.Internal)
	if err != nil {
		return d, err
	}
	*out.GetObjectKind().(*metav1.TypeMeta) = said // it is of the same type
	d.Tree, err = ToTree(out)
	return d, err
}

// Normalize does the same for a tree (the result of a patch). It does not modify t.
func (g *GoType) Normalize(t object.Tree) (Decoded, error) {
	if g.Decoder != nil {
		return g.Decode(object.AppendJSON(nil, t))
	}
	return g.decoded(g.ofTree(t))
}

// Object turns an object's JSON into the Go type, for protobuf. Unknown fields
// are dropped, nothing is filled in.
func (g *GoType) Object(json []byte) (runtime.Object, error) {
	obj := g.New()
	if err := kjson.UnmarshalCaseSensitivePreserveInts(json, obj); err != nil {
		return nil, fmt.Errorf("resource: read %T: %w", obj, err)
	}
	return obj, nil
}

// Load is the internal form of a stored object, with the defaults of the version it is stored at.
func (g *GoType) Load(json []byte) (Internal, error) { return g.loaded(g.Object(json)) }

// LoadTree is Load for an object that has been decoded.
func (g *GoType) LoadTree(t object.Tree) (Internal, error) {
	obj, _, err := g.ofTree(t)
	return g.loaded(obj, err)
}

func (g *GoType) loaded(obj runtime.Object, err error) (Internal, error) {
	if err != nil {
		return nil, err
	}
	g.Default(obj)
	return g.Internal(obj)
}

// ToInternal is the internal form of a tree that Decode has made, or what has become of one since. It shares nothing with t.
func (g *GoType) ToInternal(t object.Tree) (Internal, error) {
	obj, _, err := g.ofTree(t)
	if err != nil {
		return nil, fmt.Errorf("resource: %T of a tree: %w", obj, err)
	}
	return g.Internal(obj)
}

// Stored is the tree of obj as it is stored and read again: at the version of g, with its defaults.
func (g *GoType) Stored(obj Internal) (object.Tree, error) {
	out, err := g.External(obj)
	if err != nil {
		return nil, err
	}
	g.Default(out)
	return ToTree(out)
}

// FromInternal is the tree of obj at the version of g, with apiVersion and kind.
func (g *GoType) FromInternal(obj Internal) (object.Tree, error) {
	out, err := g.External(obj)
	if err != nil {
		return nil, err
	}
	return ToTree(out)
}
