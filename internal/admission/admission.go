// Package admission is what may change or stop a write, as a list of plugins in two stages. It knows no verbs: the
// engine tells it of a write by a Request.
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
	Version         *resource.Version           // of the objects: of a Scale, or what is posted to a subresource (a Binding), that of its own kind
	Target          *resource.Version           // that the request addresses
	Resource        schema.GroupVersionResource // the same
	Subresource     string
	Namespace, Name string // Name is "" for an object that gets its name later, and for a collection
	User            user.Info
	DryRun          bool
	// Reinvoked says that all plugins have been asked before, and that one of them has replaced the object.
	Reinvoked bool
	// Validated says that an earlier attempt at the same create has passed Validate.
	Validated bool
	// PluginState is what plugins keep, by their names, from when they are asked to when they are asked again, in this attempt or the next. It
	// may be nil.
	PluginState map[string]any
	Write       // nil where a plugin is only asked whether it handles the request
}

// Write is what a request is about, and who hears of it.
type Write interface {
	// New is the object as it is to be, at a version of its kind; nil for a deletion. The tree is the caller's.
	New(ctx context.Context, at *resource.Version) (object.Tree, error)
	// Old is the object as it is stored; nil for a creation. The tree is the caller's.
	Old(ctx context.Context, at *resource.Version) (object.Tree, error)
	// Replace makes t, at a version of the kind and with the defaults of that version, the object as it is to be. Only Admit may call it.
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
	// Step begins a step of a plugin that is worth telling of to who asks why a write has become what it is: a call, a policy. The
	// function that it returns ends it, with the error of one that refuses the write.
	Step(name string) func(error)
	// Told is a step that has ended, and has made of an object before what it is after it; nil: it has changed nothing.
	Told(name string, took time.Duration, err error, before, after object.Tree)
	// Traced is whether anybody hears of steps.
	Traced() bool
	// Waits says that somebody else is about to be asked, who may take his time: other writes need not wait for this one.
	Waits()
	// Ended has a function called when this attempt at the write has ended, whatever came of it.
	Ended(func())
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

// Admit asks each plugin to change or refuse the object. Where one has replaced it, those with a method Reinvoke that returns true
// are all asked once more.
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
		if again, ok := plugin.(interface{ Reinvoke() bool }); ok && again.Reinvoke() && plugin.Handles(r) {
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

// Validate asks each plugin to refuse the object.
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
