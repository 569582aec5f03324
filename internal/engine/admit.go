package engine

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// mutate asks admission to change or refuse what is wanted: the life cycle of namespaces and kinds first.
func (w *write) mutate() error {
	if w.admitted {
		return nil
	}
	r := w.admission()
	if err := (admission.Lifecycle{Namespaces: w.engine.namespaces}).Admit(w.ctx, r); err != nil {
		return err
	}
	owners := object.Metadata(w.wanted)["managedFields"]
	if err := w.engine.Admission.Admit(w.ctx, w.hideName(r)); err != nil {
		return err
	}
	if err := w.takeInternal(); err != nil {
		return err
	}
	if w.way == stores && (w.patches || w.replaced > 0) {
		w.dedup(" after mutating admission happens")
	}
	if w.replaced == 0 || w.wanted == nil || w.way == connects {
		return nil
	}
	w.keepOwners(owners)
	return w.locate()
}

// keepOwners puts managedFields back of which admission has made something that is none.
func (w *write) keepOwners(before any) {
	if object.Equal(before, object.Metadata(w.wanted)["managedFields"]) {
		return
	}
	err := managedfields.ValidateManagedFields((&unstructured.Unstructured{Object: w.wanted}).GetManagedFields())
	if err == nil {
		return
	}
	object.EnsureMetadata(w.wanted)["managedFields"] = before
	w.warn(".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating admission controller; please fix your requests: " + err.Error())
}

// hideName takes the name out where an object goes with a collection: as upstream has it, plugins are not told.
func (w *write) hideName(r *admission.Request) *admission.Request {
	if w.caller.nameless {
		r.Name = ""
	}
	return r
}

func (e *Engine) namespaces() *resource.Definition { return e.Live.Load().Definition("", "namespaces") }

// admit asks admission to refuse what would be stored.
func (w *write) admit() error {
	if w.op == admission.Create && !w.posts && w.caller.MayCreate != nil { // here, as upstream has it: what is invalid is refused before
		if err := w.caller.MayCreate(); err != nil {
			return err
		}
	}
	if w.admitted {
		return nil
	}
	r := w.hideName(w.admission())
	r.Validated = w.validated
	err := w.engine.Admission.Validate(w.ctx, r)
	w.validated = err == nil && w.op == admission.Create
	return err
}

// admission is the write as plugins see it, until it is asked for again.
func (w *write) admission() *admission.Request {
	w.request = admission.Request{
		Operation: w.op, Version: w.v, Target: w.target.Version, Resource: w.target.resource(), Subresource: w.target.Subresource, Namespace: w.target.Namespace, Name: w.target.Name,
		User: w.caller.User, DryRun: w.caller.DryRun, PluginState: w.request.PluginState, Write: admitted{w},
	}
	if w.request.Name == "" {
		w.request.Name = object.Name(w.wanted)
	}
	if w.def == w.engine.namespaces() { // as upstream has it, a Namespace is in itself
		w.request.Namespace = w.request.Name
	}
	if w.target.Subresource == "scale" {
		w.request.Version = ScaleVersion
	}
	return &w.request
}

// resource is what a request addresses: of what is posted to a subresource not the kind of that.
func (t *Target) resource() schema.GroupVersionResource {
	return t.Version.GroupVersion.WithResource(t.Version.Definition.Names.Plural)
}

// admitted is a write for plugins.
type admitted struct{ w *write }

// New implements admission.Write.
func (a admitted) New(ctx context.Context, at *resource.Version) (object.Tree, error) {
	if err := a.w.takeInternal(); err != nil {
		return nil, err
	}
	t := a.w.wanted
	switch {
	case a.w.obj != nil:
		t = a.w.obj
	case at == ScaleVersion:
		return object.Copy(a.w.scale.is), nil
	case t == nil:
		return nil, nil
	}
	if at == ScaleVersion {
		return a.w.asScale(ctx, t)
	}
	out, err := a.w.at(ctx, object.Copy(t), at)
	if a.w.reader.remote {
		out = object.Copy(out) // of what the write knows of conversions
	}
	return out, err
}

// Old implements admission.Write.
func (a admitted) Old(ctx context.Context, at *resource.Version) (object.Tree, error) {
	if a.w.rec == nil {
		return nil, nil
	}
	if at == ScaleVersion {
		if a.w.obj != nil {
			return a.w.asScale(ctx, a.w.live)
		}
		return object.Copy(a.w.scale.was), nil
	}
	if a.w.live != nil && at == a.w.v {
		return object.Copy(a.w.live), nil
	}
	return a.w.engine.reader(at).tree(ctx, packed(a.w.rec), a.w.rec.Modified)
}

// Replace implements admission.Write.
func (a admitted) Replace(ctx context.Context, t object.Tree, at *resource.Version) (err error) {
	a.w.replaced++
	a.w.typed.shown, a.w.typed.made = nil, nil
	if at == ScaleVersion {
		a.w.wanted, err = a.w.rescaled(t)
		return err
	}
	if a.w.def.Custom != nil {
		dropInvalidMetadata(t)
	}
	if t, err = rulesOf(at).fill(a.w, t); err == nil {
		a.w.wanted, err = a.w.at(ctx, t, a.w.v)
	}
	return err
}

// Replaced implements admission.Write.
func (a admitted) Replaced() int { return a.w.replaced }

// Internal implements admission.Write.
func (a admitted) Internal() (obj, old resource.Internal, err error) {
	w := a.w
	if w.v.Type == nil || w.v.Type.Internal == nil {
		return nil, nil, nil
	}
	if old, err = w.oldInternal(); err != nil || w.typed.obj != nil || w.wanted == nil {
		return w.typed.obj, old, err
	}
	if w.typed.shown == nil {
		w.typed.shown, err = w.wantedInternal()
	}
	return w.typed.shown, old, err
}

// oldInternal is the live object in the internal form, nil where there is none.
func (w *write) oldInternal() (old resource.Internal, err error) {
	t := &w.typed
	switch {
	case t.old != nil || w.rec == nil:
		return t.old, nil
	case t.before == nil && w.live == nil:
		t.before, err = w.loadStored()
	case t.before == nil:
		t.before, err = w.v.Type.ToInternal(w.live)
	}
	return t.before, asInternal(err)
}

// takeInternal makes wanted what plugins have made of its internal form.
func (w *write) takeInternal() error {
	obj := w.typed.shown
	if obj == nil {
		return nil
	}
	t, err := w.v.Type.FromInternal(obj)
	if err != nil {
		return asInternal(err)
	}
	keep(object.EnsureMetadata(t), object.Metadata(w.wanted), "managedFields")
	w.typed.shown, w.typed.made, w.wanted = nil, obj, t
	return nil
}

// Read implements admission.Write.
func (a admitted) Read(d *resource.Definition, namespace, name string) *object.Meta {
	guard := storage.Guard{Key: d.Key(namespace, name)}
	rec := a.w.head.Get(guard.Key)
	if rec != nil {
		guard.Revision = rec.Modified
	}
	a.w.guards = append(a.w.guards, guard)
	if rec == nil {
		return nil
	}
	return metaOf(rec).meta
}

// Options implements admission.Write. They are those of the operation, whatever the verb, as upstream has it.
func (a admitted) Options() runtime.Object {
	var dryRun []string
	var manager, validation string
	switch o := a.w.caller.Options.(type) {
	case *metav1.PatchOptions:
		dryRun, manager, validation = o.DryRun, o.FieldManager, o.FieldValidation
	case *metav1.UpdateOptions:
		dryRun, manager, validation = o.DryRun, o.FieldManager, o.FieldValidation
	case *metav1.CreateOptions:
		dryRun, manager, validation = o.DryRun, o.FieldManager, o.FieldValidation
	case *metav1.DeleteOptions:
		o.APIVersion, o.Kind = optionsVersion, "DeleteOptions"
		return o
	default:
		return o
	}
	if a.w.op == admission.Create {
		of := metav1.TypeMeta{APIVersion: optionsVersion, Kind: "CreateOptions"}
		return &metav1.CreateOptions{TypeMeta: of, DryRun: dryRun, FieldManager: manager, FieldValidation: validation}
	}
	of := metav1.TypeMeta{APIVersion: optionsVersion, Kind: "UpdateOptions"}
	return &metav1.UpdateOptions{TypeMeta: of, DryRun: dryRun, FieldManager: manager, FieldValidation: validation}
}

var optionsVersion = metav1.SchemeGroupVersion.String()

// Warn implements admission.Write.
func (a admitted) Warn(text string) { a.w.warn(text) }

// Annotate implements admission.Write.
func (a admitted) Annotate(key, value string) {
	if a.w.caller.Annotate != nil {
		a.w.caller.Annotate(key, value)
	}
}

// Step implements admission.Write.
func (a admitted) Step(name string) func(error) { return a.w.step(name) }

// Told implements admission.Write.
func (a admitted) Told(name string, took time.Duration, err error, before, after object.Tree) {
	a.w.caller.Trace.tell(name, took, err, before, after)
}

// Traced implements admission.Write.
func (a admitted) Traced() bool { return a.w.caller.Trace != nil }

// Waits implements admission.Write.
func (a admitted) Waits() { a.w.leave() }

// Ended implements admission.Write.
func (a admitted) Ended(do func()) { a.w.ended = append(a.w.ended, do) }

// at is t, which belongs to the caller, at a version of the kind.
func (w *write) at(ctx context.Context, t object.Tree, to *resource.Version) (object.Tree, error) {
	from := versionOf(w.def, object.String(t, "apiVersion"))
	if from == to {
		return t, nil
	}
	if w.reader.remote {
		return w.convertRemote(t, to)
	}
	return w.engine.convert(ctx, t, from, to)
}
