// Package admission is what may change or stop a write, as a list of plugins in two stages. It knows no verbs: the
// engine tells it of a write by a Request.
package admission

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Operation is what a request does to an object, as AdmissionReview calls it (admission.k8s.io/v1).
type Operation string

// The operations.
const (
	Create  Operation = "CREATE"
	Update  Operation = "UPDATE"
	Delete  Operation = "DELETE"
	Connect Operation = "CONNECT"
)

// Request is one attempt at a write as plugins see it.
type Request struct {
	Operation       Operation
	Version         *resource.Version           // of the objects: of what is posted to a subresource (a Binding), that of its own kind
	Resource        schema.GroupVersionResource // that the request addresses
	Subresource     string
	Namespace, Name string // Name is "" for an object that gets its name later, and for a collection
	User            user.Info
	DryRun          bool
	// Reinvoked says that all plugins have been asked before, and that one of them has replaced the object.
	Reinvoked bool
	// Kept is what plugins keep, by their names, from when they are asked to when they are asked again. It may be nil.
	Kept  map[string]any
	Write // nil where a plugin is only asked whether it handles the request
}

// Write is what a request is about, and who hears of it.
type Write interface {
	// New is the object as it is to be, at a version of its kind; nil for a deletion. The tree is the caller's.
	New(ctx context.Context, at *resource.Version) (object.Tree, error)
	// Old is the object as it is stored; nil for a creation. The tree is the caller's.
	Old(ctx context.Context, at *resource.Version) (object.Tree, error)
	// Replace makes t, at a version of the kind, the object as it is to be. Only Admit may call it.
	Replace(ctx context.Context, t object.Tree, at *resource.Version) error
	// Replaced counts the calls of Replace so far.
	Replaced() int
	// Internal returns both in the internal form of a kind of k8s.io/kubernetes, nil where there is none. Admit may modify obj, which
	// is what becomes of the object as long as nobody replaces it; old is read only.
	Internal() (obj, old resource.Internal, err error)
	// Read returns the metadata of another object, nil if there is none, in the state from which the write starts. The write
	// then holds only as long as that object has not changed, and else starts over.
	Read(d *resource.Definition, namespace, name string) *object.Meta
	// Options are CreateOptions, UpdateOptions or DeleteOptions of meta/v1; nil: none.
	Options() runtime.Object
	// Warn adds a Warning header to the answer.
	Warn(text string)
	// Annotate adds to the audit record of the request; a key is qualified by the plugin's name.
	Annotate(key, value string)
}

// Plugin may change or stop a write. An error is what the client gets, a StatusError.
type Plugin interface {
	// Name is what --enable-admission-plugins and metrics call it.
	Name() string
	// Handles says whether the plugin wants to hear of a request at all. It is asked about every write, and should be quick. What
	// none handles is cheaper: objects of a collection are deleted together.
	Handles(r *Request) bool
	// Admit comes before defaults are filled in a last time; it may change the object.
	Admit(ctx context.Context, r *Request) error
	// Validate sees the object as it will be stored, unless something else stops it.
	Validate(ctx context.Context, r *Request) error
}

// Plugins are asked in their order; the first to refuse ends the write.
type Plugins []Plugin

// Handles says whether any of them does.
func (p Plugins) Handles(r *Request) bool {
	return slices.ContainsFunc(p, func(plugin Plugin) bool { return plugin.Handles(r) })
}

// Admit asks each plugin to change or refuse the object. Where one has replaced it, those with a method Reinvoke that returns
// true are asked once more.
func (p Plugins) Admit(ctx context.Context, r *Request) error {
	before := r.Replaced()
	for _, plugin := range p {
		if !plugin.Handles(r) {
			continue
		}
		if err := plugin.Admit(ctx, r); err != nil {
			return err
		}
	}
	if r.Replaced() == before {
		return nil
	}
	r.Reinvoked = true
	defer func() { r.Reinvoked = false }()
	for _, plugin := range p {
		if again, ok := plugin.(interface{ Reinvoke() bool }); ok && again.Reinvoke() && plugin.Handles(r) {
			if err := plugin.Admit(ctx, r); err != nil {
				return err
			}
		}
	}
	return nil
}

// Validate asks each plugin to refuse the object.
func (p Plugins) Validate(ctx context.Context, r *Request) error {
	for _, plugin := range p {
		if !plugin.Handles(r) {
			continue
		}
		if err := plugin.Validate(ctx, r); err != nil {
			return err
		}
	}
	return nil
}
