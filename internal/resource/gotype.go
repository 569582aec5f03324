package resource

import (
	"github.com/trellis-k8s/trellis/internal/object"
	"k8s.io/apimachinery/pkg/runtime"
)

// GoType is how a built-in kind uses its type in k8s.io/api.
type GoType struct {
	New     func() runtime.Object // a fresh, empty object
	NewList func() runtime.Object
}

// Decode reads JSON into the Go type, so that types are checked and unknown
// fields dropped, and gives back the tree. unknown and duplicate fields are listed as strict decoding errors
// ("unknown field \"spec.foo\"").
func (g *GoType) Decode(json []byte) (t object.Tree, strict []string, err error) {
	panic("resource: Decode")
}

// Normalize does the same for a tree (the result of a patch).
func (g *GoType) Normalize(t object.Tree) (out object.Tree, strict []string, err error) {
	panic("resource: Normalize")
}

// Object turns an object's JSON into the Go type, for protobuf.
func (g *GoType) Object(json []byte) (runtime.Object, error) { panic("resource: Object") }
