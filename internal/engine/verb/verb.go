// Package verb defines the arguments and the errors of the engine's verbs. Every error that a client may see is a
// *StatusError of k8s.io/apimachinery/pkg/api/errors, with the code, reason, causes and message that upstream uses.
package verb

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/compute"
	"github.com/trellis-k8s/trellis/internal/engine/trace"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Target is the object or collection that a request addresses.
type Target struct {
	Version     *resource.Version
	Namespace   string // "" for all namespaces, or for a cluster-scoped kind
	Name        string // "" for a collection
	Subresource string // "", "status" or "scale"
	// AsStored makes reads and writes use the storage version of each object. Controllers, which need only the
	// metadata, set it so that a failing conversion cannot block them.
	AsStored bool
}

// CheckSubresource returns a 404 if the kind does not have the target's subresource.
func (t Target) CheckSubresource() error {
	v := t.Version
	if t.Subresource == "" || t.Subresource == "status" && v.Status ||
		t.Subresource == "scale" && v.Scale != nil || v.Subresource(t.Subresource) != nil {
		return nil
	}
	return NotServed()
}

// Caller describes the sender of a request, and the options of the request.
type Caller struct {
	User         user.Info
	FieldManager string // explicit or derived from the User-Agent; not empty for writes
	Validation   string // FieldValidation: "Ignore", "Warn" or "Strict"
	DryRun       bool
	Warn         func(text string)       // adds a Warning header; nil discards warnings
	Options      runtime.Object          // the options of the verb, which admission receives
	Annotate     func(key, value string) // adds an annotation to the audit event; nil means there is no event
	Trace        *trace.Trace            // records the steps of the write; nil disables tracing
	OnDecoded    func(object.Tree)       // receives the decoded body of a create or update, with defaults; may be nil
	MayCreate    func() error            // authorizes an update or apply that would create the object; nil allows it
	// CheckMemory returns an error if the result of a patch or apply takes too much memory. nil allows any size.
	CheckMemory func(object.Tree) error
	Slot        *compute.Slot // released while the write waits for a webhook; nil for an inexpensive write
}

// Body is a decoded request body at the target's version.
type Body struct {
	// Tree is the decoded object. The engine takes ownership of it and modifies it.
	Tree object.Tree
	// Typed means that a method of Version.Type (Decode, Normalize or DecodeProtobuf) returned Tree. The engine
	// then does not normalize it.
	Typed bool
	// Internal is the same object in the internal form, or nil. The engine takes ownership of it.
	Internal resource.Internal
	// Strict lists the strict decoding errors found so far, such as `duplicate field "spec.foo"` or `unknown
	// field …`.
	Strict []string
	// DecodeError is the error of Version.Type for a body that it cannot decode. nil means that decoding succeeded
	// or was not tried.
	DecodeError error
	// Source is the original body, which errors quote. If it is nil, errors quote Tree.
	Source []byte
}

// Patch is a patch and its type. For an apply patch Data is YAML or JSON.
type Patch struct {
	Type  types.PatchType
	Data  []byte
	Force bool // for an apply: take over fields that other managers own
}
