// Package engine implements the Kubernetes verbs for any resource.Definition on top of a storage.Store. Callers
// pass decoded objects, and results hold encoded bytes. The package does not use HTTP, and must not import packages
// that do, such as internal/api.
//
// Every error that a client may see is a *StatusError of k8s.io/apimachinery/pkg/api/errors, with the code, reason,
// causes and message that upstream uses.
package engine

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/compute"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Engine implements the verbs. Open creates it.
type Engine struct {
	Config
	Live *resource.Live // the served kinds

	// beforeCommit is a hook that tests use to make other writes before a commit. It receives the writes of the
	// commit. nil means no hook.
	beforeCommit func([]storage.Write)

	// upToCommit runs a write through all stages before the commit. It is a field because a direct reference from a
	// stage to the list of stages would be an initialization cycle in Go.
	upToCommit func(*write) error

	tasks             tasks
	conversions       conversionCache
	schemaGenerations schemaGenerations
	queues            queues
	indexes           indexes
}

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

// Caller describes the sender of a request, and the options of the request.
type Caller struct {
	User         user.Info
	FieldManager string // explicit or derived from the User-Agent; not empty for writes
	Validation   string // FieldValidation: "Ignore", "Warn" or "Strict"
	DryRun       bool
	Warn         func(text string)       // adds a Warning header; nil discards warnings
	Options      runtime.Object          // the options of the verb, which admission receives
	Annotate     func(key, value string) // adds an annotation to the audit event; nil means there is no event
	Trace        *Trace                  // records the steps of the write; nil disables tracing
	OnDecoded    func(object.Tree)       // receives the decoded body of a create or update, with defaults; may be nil
	MayCreate    func() error            // authorizes an update or apply that would create the object; nil allows it
	// CheckMemory returns an error if the result of a patch or apply takes too much memory. nil allows any size.
	CheckMemory func(object.Tree) error
	Slot        *compute.Slot // released while the write waits for a webhook; nil for an inexpensive write
	// hideName is set during a DeleteCollection. As in upstream, admission then does not see the names of the
	// objects.
	hideName bool
}

// Object is one object at one version. Its bytes are shared and must not be modified.
type Object struct {
	Version  *resource.Version
	Revision int64 // the object's resourceVersion
	// Record is the stored record of the object, or an equivalent record. It caches the values derived from the
	// object.
	Record *storage.Record
}

// ListOptions are the options of list and watch, with parsed selectors.
type ListOptions struct {
	Labels               labels.Selector // nil selects everything
	Fields               fields.Selector // nil selects everything
	ResourceVersion      string
	ResourceVersionMatch metav1.ResourceVersionMatch
	Limit                int64
	Continue             string
	// Options of a watch.
	AllowWatchBookmarks bool
	SendInitialEvents   *bool
}

// List is one page of a consistent list.
type List struct {
	Version   *resource.Version
	Revision  int64
	Continue  string
	Remaining *int64
	Items     []Object
}

// WatchEvent is one event of a watch.
type WatchEvent struct {
	Type   string // "ADDED", "MODIFIED", "DELETED", "BOOKMARK"
	Object Object // only Revision and Version are set in a BOOKMARK
	// InitialEventsEnd marks the bookmark that ends the initial events.
	InitialEventsEnd bool
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
