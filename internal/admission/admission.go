// Package admission runs plugins that may change or reject a write, in two stages. It must not import the engine, which
// describes each write in a Request.
package admission

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Operation is the operation of a request, with the names of AdmissionReview (admission.k8s.io/v1).
type Operation string

// The operations.
const (
	Create  Operation = "CREATE"
	Update  Operation = "UPDATE"
	Delete  Operation = "DELETE"
	Connect Operation = "CONNECT"
)

// Request describes one attempt at a write to plugins.
type Request struct {
	Operation Operation
	// Version is the version of the objects. At a subresource whose objects have another kind, such as Scale or
	// Binding, it is the version of that kind.
	Version         *resource.Version
	Target          *resource.Version           // the version that the request addresses
	Resource        schema.GroupVersionResource // the resource of Target
	Subresource     string
	Namespace, Name string // Name is "" for a collection, and before a name is generated
	User            user.Info
	DryRun          bool
	// Reinvoked reports that all plugins have been called, and that one of them has replaced the object.
	Reinvoked bool
	// Validated reports that an earlier attempt at the same create has passed Validate.
	Validated bool
	// PluginState holds data that plugins store between calls, in this attempt and later ones. The key is the plugin's
	// name. It may be nil.
	PluginState map[string]any
	Objects     // nil in calls of Plugin.Handles
	Reporter    // nil in calls of Plugin.Handles
}

// Objects gives plugins access to the objects of a write.
type Objects interface {
	// New returns the new object at a version of its kind, or nil for a deletion. The caller may modify the tree.
	New(ctx context.Context, at *resource.Version) (object.Tree, error)
	// Old returns the stored object, or nil for a creation. The caller may modify the tree.
	Old(ctx context.Context, at *resource.Version) (object.Tree, error)
	// Replace replaces the new object by t. The parameter at is the version of t. t has the defaults of that version.
	// Only Admit may call it.
	Replace(ctx context.Context, t object.Tree, at *resource.Version) error
	// Replaced returns the number of calls of Replace.
	Replaced() int
	// Internal returns the new and the stored object in the internal form that k8s.io/kubernetes has for their kind.
	// An object that does not exist is nil. Admit may modify obj, and its changes are stored unless Replace is called.
	// old is read-only.
	Internal() (obj, old resource.Internal, err error)
	// Read returns the metadata of another object in the state on which the write is based, or nil if it does not
	// exist. If that object changes before the write is committed, the write starts over.
	Read(d *resource.Definition, namespace, name string) *object.Meta
	// Options returns the CreateOptions, UpdateOptions or DeleteOptions of meta/v1, or nil.
	Options() runtime.Object
}

// Reporter gives plugins access to the trace, the audit record and the response of a write.
type Reporter interface {
	// Step begins a step of a plugin in the trace of the write, such as a call of a webhook. The returned function ends
	// the step. Its argument is the error with which the step rejects the write, or nil.
	Step(name string) func(error)
	// RecordStep adds a completed step to the trace. before and after are the object before and after the step. Both
	// are nil if the step did not change the object.
	RecordStep(name string, took time.Duration, err error, before, after object.Tree)
	// Traced reports whether the write has a trace.
	Traced() bool
	// WillBlock announces that the plugin is about to wait for a remote server. Other writes of the same object then
	// no longer wait for this write.
	WillBlock()
	// OnEnd registers a function to call when the write ends, successful or not. All attempts at the write have then
	// ended.
	OnEnd(func())
	// Warn adds a Warning header to the response.
	Warn(text string)
	// Annotate adds an annotation to the audit record of the request. Keys are qualified by the plugin's name.
	Annotate(key, value string)
}

// Plugin may change or reject a write. The error of a rejection is a StatusError, which the client receives.
type Plugin interface {
	// Name returns the plugin's name in --enable-admission-plugins and in metrics.
	Name() string
	// Handles reports whether the plugin must be called for a request. It is called for every write and must be fast.
	// A write is cheaper if no plugin handles it. For example, the objects of a collection are then deleted together.
	Handles(r *Request) bool
	// Admit may change the object. Afterwards the server sets missing defaults once more.
	Admit(ctx context.Context, r *Request) error
	// Validate validates the object in the form in which it will be stored.
	Validate(ctx context.Context, r *Request) error
}

// Plugins is a list of plugins, which are called in order. The first error ends the write.
type Plugins []Plugin

// Handles reports whether any plugin handles the request.
func (p Plugins) Handles(r *Request) bool {
	return slices.ContainsFunc(p, func(plugin Plugin) bool { return plugin.Handles(r) })
}

// Admit calls Admit of each plugin. If a plugin has replaced the object, Admit then calls all plugins again whose
// method Reinvoke returns true.
func (p Plugins) Admit(ctx context.Context, r *Request) error {
	before := r.Replaced()
	for _, plugin := range p {
		if !plugin.Handles(r) {
			continue
		}
		if err := admit(ctx, plugin, r); err != nil {
			return err
		}
	}
	if r.Replaced() == before {
		return nil
	}
	r.Reinvoked = true
	defer func() { r.Reinvoked = false }()
	for _, plugin := range p {
		if p, ok := plugin.(interface{ Reinvoke() bool }); ok && p.Reinvoke() && plugin.Handles(r) {
			if err := admit(ctx, plugin, r); err != nil {
				return err
			}
		}
	}
	return nil
}

func admit(ctx context.Context, p Plugin, r *Request) error {
	end := r.Step(p.Name())
	err := p.Admit(ctx, r)
	end(err)
	return err
}

// Validate calls Validate of each plugin.
func (p Plugins) Validate(ctx context.Context, r *Request) error {
	for _, plugin := range p {
		if !plugin.Handles(r) {
			continue
		}
		end := r.Step(plugin.Name())
		err := plugin.Validate(ctx, r)
		end(err)
		if err != nil {
			return err
		}
	}
	return nil
}
