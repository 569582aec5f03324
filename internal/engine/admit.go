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

// mutate runs admission.Lifecycle and then the mutating admission plugins.
func (w *write) mutate() error {
	if w.skipAdmission {
		return nil
	}
	r := w.admissionRequest()
	if err := (admission.Lifecycle{Namespaces: w.engine.namespaces}).Admit(w.ctx, r); err != nil {
		return err
	}
	owners := object.Metadata(w.desired)["managedFields"]
	if err := w.engine.Admission.Admit(w.ctx, w.hideName(r)); err != nil {
		return err
	}
	if err := w.applyPluginObject(); err != nil {
		return err
	}
	if w.kind == opStore && (w.isPatch || w.replacements > 0) {
		w.dedup(" after mutating admission happens")
	}
	if w.replacements == 0 || w.desired == nil || w.kind == opConnect {
		return nil
	}
	w.restoreManagedFields(owners)
	return w.locate()
}

// restoreManagedFields puts the former managedFields back if admission has made them invalid.
func (w *write) restoreManagedFields(before any) {
	if object.Equal(before, object.Metadata(w.desired)["managedFields"]) {
		return
	}
	err := managedfields.ValidateManagedFields((&unstructured.Unstructured{Object: w.desired}).GetManagedFields())
	if err == nil {
		return
	}
	object.EnsureMetadata(w.desired)["managedFields"] = before
	w.warn(".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated " +
		"mutating admission controller; please fix your requests: " + err.Error())
}

// hideName clears the name in the request during a DeleteCollection, because upstream does not pass the name to
// plugins.
func (w *write) hideName(r *admission.Request) *admission.Request {
	if w.caller.hideName {
		r.Name = ""
	}
	return r
}

func (e *Engine) namespaces() *resource.Definition { return e.Live.Load().Definition("", "namespaces") }

// admit runs the validating admission plugins.
func (w *write) admit() error {
	// As in upstream, the server rejects an invalid object before it authorizes the creation.
	if w.op == admission.Create && !w.createOnly && w.caller.MayCreate != nil {
		if err := w.caller.MayCreate(); err != nil {
			return err
		}
	}
	if w.skipAdmission {
		return nil
	}
	r := w.hideName(w.admissionRequest())
	r.Validated = w.validated
	err := w.engine.Admission.Validate(w.ctx, r)
	w.validated = err == nil && w.op == admission.Create
	return err
}

// admissionRequest returns the write in the form that plugins receive. The next call overwrites the result.
func (w *write) admissionRequest() *admission.Request {
	w.request = admission.Request{
		Operation:   w.op,
		Version:     w.v,
		Target:      w.target.Version,
		Resource:    w.target.resource(),
		Subresource: w.target.Subresource,
		Namespace:   w.target.Namespace,
		Name:        w.target.Name,
		User:        w.caller.User,
		DryRun:      w.caller.DryRun,
		PluginState: w.request.PluginState,
		Write:       pluginWrite{w},
	}
	if w.request.Name == "" {
		w.request.Name = object.Name(w.desired)
	}
	if w.def == w.engine.namespaces() { // in upstream, the namespace of a Namespace object is its own name
		w.request.Namespace = w.request.Name
	}
	if w.target.Subresource == "scale" {
		w.request.Version = ScaleVersion
	}
	return &w.request
}

// resource returns the resource in the request's URL. For a POST to a subresource this is the resource of the
// parent object.
func (t *Target) resource() schema.GroupVersionResource {
	return t.Version.GroupVersion.WithResource(t.Version.Definition.Names.Plural)
}

// pluginWrite implements admission.Write for w.
type pluginWrite struct{ w *write }

// New implements admission.Write.
func (a pluginWrite) New(ctx context.Context, at *resource.Version) (object.Tree, error) {
	if err := a.w.applyPluginObject(); err != nil {
		return nil, err
	}
	t := a.w.desired
	switch {
	case a.w.obj != nil:
		t = a.w.obj
	case at == ScaleVersion:
		return object.Copy(a.w.scale.desired), nil
	case t == nil:
		return nil, nil
	}
	if at == ScaleVersion {
		return a.w.asScale(t)
	}
	out, err := a.w.at(t, at)
	return object.Copy(out), err
}

// Old implements admission.Write.
func (a pluginWrite) Old(ctx context.Context, at *resource.Version) (object.Tree, error) {
	if a.w.rec == nil {
		return nil, nil
	}
	if at == ScaleVersion {
		if a.w.obj != nil {
			return a.w.asScale(a.w.live)
		}
		return object.Copy(a.w.scale.live), nil
	}
	if a.w.live != nil && at == a.w.v {
		return object.Copy(a.w.live), nil
	}
	return a.w.engine.readerAt(at).tree(ctx, packed(a.w.rec), a.w.rec.Modified)
}

// Replace implements admission.Write.
func (a pluginWrite) Replace(ctx context.Context, t object.Tree, at *resource.Version) (err error) {
	a.w.replacements++
	a.w.typed.pluginObj, a.w.typed.decoded = nil, nil
	if at == ScaleVersion {
		a.w.desired, err = a.w.withScale(t)
		return err
	}
	if at.Schema != nil {
		dropInvalidMetadata(t)
	}
	if t, err = rulesOf(at).fillDefaults(a.w, t); err == nil {
		a.w.desired, err = a.w.at(t, a.w.v)
	}
	return err
}

// Replaced implements admission.Write.
func (a pluginWrite) Replaced() int { return a.w.replacements }

// Internal implements admission.Write.
func (a pluginWrite) Internal() (obj, old resource.Internal, err error) {
	w := a.w
	if w.v.Type == nil || w.v.Type.Internal == nil {
		return nil, nil, nil
	}
	if old, err = w.oldInternal(); err != nil || w.typed.obj != nil || w.desired == nil {
		return w.typed.obj, old, err
	}
	if w.typed.pluginObj == nil {
		w.typed.pluginObj, err = w.desiredInternal()
	}
	return w.typed.pluginObj, old, err
}

// oldInternal returns the live object in the internal form, or nil if it does not exist.
func (w *write) oldInternal() (old resource.Internal, err error) {
	t := &w.typed
	switch {
	case t.old != nil || w.rec == nil:
		return t.old, nil
	case t.pluginOld == nil && w.live == nil:
		t.pluginOld, err = w.liveInternal()
	case t.pluginOld == nil:
		t.pluginOld, err = w.v.Type.ToInternal(w.live)
	}
	return t.pluginOld, asInternalError(err)
}

// applyPluginObject converts the internal object that plugins received to the new desired object. Plugins may have
// changed it.
func (w *write) applyPluginObject() error {
	obj := w.typed.pluginObj
	if obj == nil {
		return nil
	}
	t, err := w.v.Type.FromInternal(obj)
	if err != nil {
		return asInternalError(err)
	}
	object.CopyField(object.EnsureMetadata(t), object.Metadata(w.desired), "managedFields")
	w.typed.pluginObj, w.typed.decoded, w.desired = nil, obj, t
	return nil
}

// Read implements admission.Write.
func (a pluginWrite) Read(d *resource.Definition, namespace, name string) *object.Meta {
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

// Options implements admission.Write. As in upstream, the type of the options depends on the operation and not on
// the verb. For example, a patch that creates the object has CreateOptions.
func (a pluginWrite) Options() runtime.Object {
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
func (a pluginWrite) Warn(text string) { a.w.warn(text) }

// Annotate implements admission.Write.
func (a pluginWrite) Annotate(key, value string) {
	if a.w.caller.Annotate != nil {
		a.w.caller.Annotate(key, value)
	}
}

// Step implements admission.Write.
func (a pluginWrite) Step(name string) func(error) { return a.w.step(name) }

// RecordStep implements admission.Write.
func (a pluginWrite) RecordStep(name string, took time.Duration, err error, before, after object.Tree) {
	a.w.caller.Trace.addStep(name, took, err, before, after)
}

// Traced implements admission.Write.
func (a pluginWrite) Traced() bool { return a.w.caller.Trace != nil }

// WillBlock implements admission.Write.
func (a pluginWrite) WillBlock() { a.w.leaveQueue() }

// OnEnd implements admission.Write.
func (a pluginWrite) OnEnd(do func()) { a.w.afterAll = append(a.w.afterAll, do) }
