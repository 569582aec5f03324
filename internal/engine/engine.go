// Package engine is the verbs for any Definition over a store. It knows no HTTP:
// what comes in is decoded, what goes out are objects that lie as bytes.
//
// Every error that a client may see is a *StatusError of
// k8s.io/apimachinery/pkg/api/errors with upstream's code, reason, causes and message.
package engine

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Engine serves the verbs.
type Engine struct {
	Store *storage.Store
	Live  *resource.Live
	Now   func() time.Time
}

// Target is what a request addresses.
type Target struct {
	Version     *resource.Version
	Namespace   string // "" for all namespaces, or a cluster-scoped kind
	Name        string // "" for a collection
	Subresource string // "", "status" or "scale"
}

// Caller is who asks, and how the request wants its write recorded.
type Caller struct {
	User         user.Info
	FieldManager string // explicit, or from the User-Agent; never empty for writes
	Validation   string // FieldValidation: "Ignore", "Warn" or "Strict"
	DryRun       bool
	Warn         func(text string) // adds a Warning header
}

// Object is one object at one version; its bytes are shared and never modified.
type Object struct {
	Version  *resource.Version
	Revision int64 // its resourceVersion
	Packed   object.Packed
	// Record is what it was read from; nil for a dry run. What is derived from it may be kept there.
	Record *storage.Record
}

// AppendJSON appends the object's JSON at its version.
func (o Object) AppendJSON(dst []byte) []byte { panic("engine: AppendJSON") }

// Meta returns the object's metadata, scanned at most once per record.
func (o Object) Meta() *object.Meta { panic("engine: Meta") }

// Tree decodes the object into a fresh tree.
func (o Object) Tree() (object.Tree, error) { panic("engine: Tree") }

// Get reads one object. resourceVersion is the request's: "", "0" or a number to wait for.
func (e *Engine) Get(ctx context.Context, t Target, resourceVersion string) (Object, error) {
	panic("engine: Get")
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

// List reads a collection.
func (e *Engine) List(ctx context.Context, t Target, o ListOptions) (*List, error) {
	panic("engine: List")
}

// WatchEvent is one event as a watcher sees it.
type WatchEvent struct {
	Type   string // "ADDED", "MODIFIED", "DELETED", "BOOKMARK"
	Object Object // for a BOOKMARK only Revision and Version are set
	// InitialEventsEnd marks the bookmark that ends the initial events.
	InitialEventsEnd bool
}

// Watch is a running watch, used by one goroutine.
type Watch struct{}

// Watch starts a watch. An error here is answered as a response; one of Take as an ERROR event.
func (e *Engine) Watch(ctx context.Context, t Target, o ListOptions) (*Watch, error) {
	panic("engine: Watch")
}

// Ready receives when Take may have something new.
func (w *Watch) Ready() <-chan struct{} { panic("engine: Ready") }

// Take returns what is ready, without blocking: initial events first, a bounded number a call; when it
// returns some, call it again after writing them. An error is final: a StatusError (410, a changed CRD), or io.EOF for an ordinary end.
func (w *Watch) Take(buf []WatchEvent) ([]WatchEvent, error) { panic("engine: Take") }

// Bookmark returns a BOOKMARK event for all that Take has returned, if bookmarks were asked for
// and there is progress to report.
func (w *Watch) Bookmark() (WatchEvent, bool) { panic("engine: Bookmark") }

// Close ends the watch.
func (w *Watch) Close() { panic("engine: Close") }

// Body is a decoded request body at the target's version.
type Body struct {
	Tree object.Tree
	// Strict are strict decoding errors so far: `duplicate field "spec.foo"`, `unknown field …`.
	Strict []string
}

// Create stores a new object.
func (e *Engine) Create(ctx context.Context, t Target, b Body, c Caller) (Object, error) {
	panic("engine: Create")
}

// Update replaces an object, or its subresource. created is true where a PUT made it.
func (e *Engine) Update(ctx context.Context, t Target, b Body, c Caller) (o Object, created bool, err error) {
	panic("engine: Update")
}

// Patch is a patch and its kind. For an apply patch Data is YAML or JSON.
type Patch struct {
	Type  types.PatchType
	Data  []byte
	Force bool // apply
}

// Patch changes an object, retrying on conflict where the patch carries no resourceVersion. created is true
// where an apply made it.
func (e *Engine) Patch(ctx context.Context, t Target, p Patch, c Caller) (o Object, created bool, err error) {
	panic("engine: Patch")
}

// Delete removes an object or starts its deletion. gone says that it is no longer stored.
func (e *Engine) Delete(ctx context.Context, t Target, o metav1.DeleteOptions, c Caller) (obj Object, gone bool, err error) {
	panic("engine: Delete")
}

// DeleteCollection deletes what o selects and returns it as it was.
func (e *Engine) DeleteCollection(ctx context.Context, t Target, d metav1.DeleteOptions, o ListOptions, c Caller) (*List, error) {
	panic("engine: DeleteCollection")
}
