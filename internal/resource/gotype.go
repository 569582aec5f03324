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

// GoType describes the Go type of a kind. The Go type of a built-in kind is in k8s.io/api.
type GoType struct {
	New     func() runtime.Object // returns a new, empty object
	NewList func() runtime.Object
	// OpenAPI returns the generated schemas of the type and of the types that it refers to. It may return other
	// schemas too. All types in one OpenAPI document have the same function.
	OpenAPI func(common.ReferenceCallback) map[string]common.OpenAPIDefinition
	// Default sets the missing fields of obj, which is of this type, to their defaults. A nil Default means that
	// there are no defaults.
	Default func(obj runtime.Object)
	// Internal converts obj, which is of this type, to the internal form. External converts the internal form to
	// this type and sets apiVersion and kind. The two forms share memory, so neither may be modified while the
	// other is in use. Both functions are nil for a kind without a Strategy.
	Internal func(obj runtime.Object) (Internal, error)
	External func(obj Internal) (runtime.Object, error)
	// NoProtobuf specifies that the type has no protobuf form.
	NoProtobuf bool
	// Decoder, if not nil, decodes instead of byType. It may call byType for the whole body or for parts of it.
	Decoder func(
		json []byte, byType func([]byte) (object.Tree, []string, error),
	) (t object.Tree, strict []string, err error)

	weights atomic.Pointer[weight.Table] // nil until the first use
}

// Weights returns the table for estimating the memory of objects.
func (g *GoType) Weights() *weight.Table {
	if t := g.weights.Load(); t != nil {
		return t
	}
	t := weight.NewTable(reflect.TypeOf(g.New()).Elem())
	g.weights.Store(t)
	return t
}

// Empty returns the encoded form of an empty object of a built-in kind. It must not be modified.
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

// Decoded is a decoded request body. Its two forms share no memory that can be modified.
type Decoded struct {
	Tree     object.Tree
	Internal Internal // internal form; nil for a kind that has no Strategy or has a Decoder
	Strict   []string // unknown and duplicate fields in order of appearance: `unknown field "spec.foo"`
}

// Decode decodes JSON into the Go type, which checks the types of values and drops unknown fields. It returns the
// tree as upstream would serve it, with defaults. Errors equal those of encoding/json. apiVersion and kind are
// those of the body and may be missing.
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
	return g.finishDecode(obj, problems, err)
}

// finishDecode sets the defaults of obj. The tree is converted from the internal form, which may move a field to
// another place.
func (g *GoType) finishDecode(obj runtime.Object, problems []error, err error) (d Decoded, _ error) {
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
	typeMeta := *sent // the version and kind in the body, which may be empty
	if d.Internal, err = g.Internal(obj); err != nil {
		return d, err
	}
	out, err := g.External(d.Internal)
	if err != nil {
		return d, err
	}
	*out.GetObjectKind().(*metav1.TypeMeta) = typeMeta // out has the same Go type as obj
	d.Tree, err = ToTree(out)
	return d, err
}

// Normalize does the same as Decode for a tree, such as the result of a patch. It does not modify t.
func (g *GoType) Normalize(t object.Tree) (Decoded, error) {
	if g.Decoder != nil {
		return g.Decode(object.AppendJSON(nil, t))
	}
	return g.finishDecode(g.fromTree(t))
}

// Object decodes an object's JSON into the Go type, for protobuf. It drops unknown fields and sets no defaults.
func (g *GoType) Object(json []byte) (runtime.Object, error) {
	obj := g.New()
	if err := kjson.UnmarshalCaseSensitivePreserveInts(json, obj); err != nil {
		return nil, fmt.Errorf("resource: decode %T: %w", obj, err)
	}
	return obj, nil
}

// Load returns the internal form of a stored object, with the defaults of its storage version.
func (g *GoType) Load(json []byte) (Internal, error) { return g.load(g.Object(json)) }

// LoadTree does the same as Load for a decoded object.
func (g *GoType) LoadTree(t object.Tree) (Internal, error) {
	obj, _, err := g.fromTree(t)
	return g.load(obj, err)
}

func (g *GoType) load(obj runtime.Object, err error) (Internal, error) {
	if err != nil {
		return nil, err
	}
	g.Default(obj)
	return g.Internal(obj)
}

// ToInternal returns the internal form of a tree that Decode returned and that may have been modified since. The
// result shares no memory with t.
func (g *GoType) ToInternal(t object.Tree) (Internal, error) {
	obj, _, err := g.fromTree(t)
	if err != nil {
		return nil, fmt.Errorf("resource: convert tree to %T: %w", obj, err)
	}
	return g.Internal(obj)
}

// Stored returns the tree that results from storing obj and reading it again. The tree is at the version of g and
// has the defaults of that version.
func (g *GoType) Stored(obj Internal) (object.Tree, error) {
	out, err := g.External(obj)
	if err != nil {
		return nil, err
	}
	g.Default(out)
	return ToTree(out)
}

// FromInternal returns the tree of obj at the version of g, with apiVersion and kind.
func (g *GoType) FromInternal(obj Internal) (object.Tree, error) {
	out, err := g.External(obj)
	if err != nil {
		return nil, err
	}
	return ToTree(out)
}
