// Package engine is the verbs for any Definition over a store. It knows no HTTP:
// what comes in is decoded, what goes out are objects that lie as bytes.
//
// Every error that a client may see is a *StatusError of
// k8s.io/apimachinery/pkg/api/errors with upstream's code, reason, causes and message.
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

// Engine serves the verbs. Open makes one.
type Engine struct {
	Config
	Live *resource.Live // the kinds that are served

	// beforeCommit, if not nil, is called with what has been judged and is about to be committed: tests let other
	// writes come in between.
	beforeCommit func([]storage.Write)

	upToCommit func(*write) error // takes a write up to its commit: a stage cannot itself refer to the stages

	tasks   tasks
	conversions   conversionCache
	schemaGenerations  schemaGenerations
	queues  queues
	indexes indexes
}

// Target is what a request addresses.
type Target struct {
	Version     *resource.Version
	Namespace   string // "" for all namespaces, or a cluster-scoped kind
	Name        string // "" for a collection
	Subresource string // "", "status" or "scale"
	// AsStored leaves objects at the version they are stored at, so that no conversion can get in the way of
	// who looks at metadata only: the control loops. A write leaves them there, too.
	AsStored bool
}

// Caller is who asks, and how the request wants its write recorded.
type Caller struct {
	User         user.Info
	FieldManager string // explicit, or from the User-Agent; never empty for writes
	Validation   string // FieldValidation: "Ignore", "Warn" or "Strict"
	DryRun       bool
	Warn         func(text string)       // adds a Warning header
	Options      runtime.Object          // of the verb, for admission
	Annotate     func(key, value string) // adds to the audit record; nil: there is none
	Trace        *Trace                  // gets the steps of the write; nil: nobody wants them
	OnDecoded    func(object.Tree)       // sees the body of a create or update, with defaults; nil: nobody does
	MayCreate    func() error            // refuses an update or apply that would create; nil: it may
	CheckMemory  func(object.Tree) error // refuses the result of a patch or apply that takes too much memory; nil: none does
	Slot         *compute.Slot           // is paused while the write waits for a webhook; nil: the write is inexpensive
	hideName     bool                    // deletes objects of a collection, whose names admission is not told, as upstream has it
}

// Object is one object at one version; its bytes are shared and never modified.
type Object struct {
	Version  *resource.Version
	Revision int64 // its resourceVersion
	// Record is what it was read from, or would be. What is derived from it is kept there.
	Record *storage.Record
}

// ListOptions are the options of list and watch, selectors parsed.
type ListOptions struct {
	Labels               labels.Selector // nil: everything
	Fields               fields.Selector // nil: everything
	ResourceVersion      string
	ResourceVersionMatch metav1.ResourceVersionMatch
	Limit                int64
	Continue             string
	// of a watch
	AllowWatchBookmarks bool
	SendInitialEvents   *bool
}

// List is a consistent page of a collection.
type List struct {
	Version   *resource.Version
	Revision  int64
	Continue  string
	Remaining *int64
	Items     []Object
}

// WatchEvent is one event as a watcher sees it.
type WatchEvent struct {
	Type   string // "ADDED", "MODIFIED", "DELETED", "BOOKMARK"
	Object Object // for a BOOKMARK only Revision and Version are set
	// InitialEventsEnd marks the bookmark that ends the initial events.
	InitialEventsEnd bool
}

// Body is a decoded request body at the target's version.
type Body struct {
	// Tree belongs to the engine from the call on, which modifies it.
	Tree object.Tree
	// Typed says that Tree was made by Version.Type (Decode, Normalize or DecodeProtobuf) and need not go
	// through it once more.
	Typed bool
	// Internal is the same object in the internal form, or nil. It belongs to the engine too.
	Internal resource.Internal
	// Strict are strict decoding errors so far: `duplicate field "spec.foo"`, `unknown field …`.
	Strict []string
	// DecodeError is why Version.Type did not take the body, where that has been tried.
	DecodeError error
	// Source is the body as it came, for errors that quote it; nil: they quote Tree.
	Source []byte
}

// Patch is a patch and its kind. For an apply patch Data is YAML or JSON.
type Patch struct {
	Type  types.PatchType
	Data  []byte
	Force bool // apply
}
