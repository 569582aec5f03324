package resource

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
)

// GoType is how a built-in kind uses its type in k8s.io/api.
type GoType struct {
	New     func() runtime.Object // a fresh, empty object
	NewList func() runtime.Object
	// Decoder, if not nil, decodes in place of byType, which it may use for the whole or for parts.
	Decoder func(json []byte, byType func([]byte) (object.Tree, []string, error)) (t object.Tree, strict []string, err error)
}

// Decode reads JSON into the Go type, so that types are checked and unknown
// fields dropped, and gives back the tree as upstream would serve it. strict
// lists unknown and duplicate fields in order of appearance (`unknown field
// "spec.foo"`); err is worded as encoding/json words it. apiVersion and kind are
// as the body has them, which may be not at all.
func (g *GoType) Decode(json []byte) (t object.Tree, strict []string, err error) {
	if g.Decoder != nil {
		return g.Decoder(json, g.byType)
	}
	return g.byType(json)
}

func (g *GoType) byType(json []byte) (t object.Tree, strict []string, err error) {
	obj, strict, err := g.Read(json)
	if err != nil {
		return nil, nil, err
	}
	t, err = ToTree(obj)
	return t, strict, err
}

// Read is Decode up to the object of the Go type.
func (g *GoType) Read(json []byte) (obj runtime.Object, strict []string, err error) {
	obj = g.New()
	problems, err := kjson.UnmarshalStrict(json, obj)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range problems {
		strict = append(strict, p.Error())
	}
	return obj, strict, nil
}

// Normalize does the same for a tree (the result of a patch). It does not modify
// t. It goes through JSON, since the shorter way by reflection cuts off integers that do not
// fit where JSON reports them.
func (g *GoType) Normalize(t object.Tree) (out object.Tree, strict []string, err error) {
	return g.Decode(object.AppendJSON(nil, t))
}

// Object turns an object's JSON into the Go type, for protobuf. Unknown fields
// are dropped.
func (g *GoType) Object(json []byte) (runtime.Object, error) {
	obj := g.New()
	if err := kjson.UnmarshalCaseSensitivePreserveInts(json, obj); err != nil {
		return nil, fmt.Errorf("resource: read %T: %w", obj, err)
	}
	return obj, nil
}

// ToTree turns an object of a Go type into the tree of its JSON. The tree
// shares nothing that can be modified with obj.
func ToTree(obj runtime.Object) (object.Tree, error) {
	t, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("resource: tree of %T: %w", obj, err)
	}
	object.WholeNumbers(t)
	return t, nil
}
