package write

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/scales"
	"github.com/trellis-k8s/trellis/internal/engine/strategy"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// mutate runs admission.Lifecycle and then the mutating admission plugins.
func (w *write) mutate() error {
	if w.admission.skip {
		return nil
	}
	r := w.admissionRequest()
	if err := (admission.Lifecycle{Namespaces: w.writer.namespaces}).Admit(w.Ctx, r); err != nil {
		return err
	}
	owners := object.Metadata(w.Desired)["managedFields"]
	if err := w.writer.Admission.Admit(w.Ctx, w.hideName(r)); err != nil {
		return err
	}
	if err := w.applyPluginObject(); err != nil {
		return err
	}
	if w.kind == opStore && (w.IsPatch || w.replacements > 0) {
		w.dedup(" after mutating admission happens")
	}
	if w.replacements == 0 || w.Desired == nil || w.kind == opConnect {
		return nil
	}
	w.restoreManagedFields(owners)
	return w.locate()
}

// restoreManagedFields puts the former managedFields back if admission has made them invalid.
func (w *write) restoreManagedFields(before any) {
	if object.Equal(before, object.Metadata(w.Desired)["managedFields"]) {
		return
	}
	err := managedfields.ValidateManagedFields((&unstructured.Unstructured{Object: w.Desired}).GetManagedFields())
	if err == nil {
		return
	}
	object.EnsureMetadata(w.Desired)["managedFields"] = before
	w.Warn(".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated " +
		"mutating admission controller; please fix your requests: " + err.Error())
}

// hideName clears the name in the request during a DeleteCollection, because upstream does not pass the name to
// plugins.
func (w *write) hideName(r *admission.Request) *admission.Request {
	if w.deletion.hideName {
		r.Name = ""
	}
	return r
}

func (wr *Writer) namespaces() *resource.Definition {
	return wr.Live.Load().Definition("", "namespaces")
}

// admit runs the validating admission plugins.
func (w *write) admit() error {
	// As in upstream, the server rejects an invalid object before it authorizes the creation.
	if w.Op == admission.Create && !w.CreateOnly && w.Caller.MayCreate != nil {
		if err := w.Caller.MayCreate(); err != nil {
			return err
		}
	}
	if w.admission.skip {
		return nil
	}
	r := w.hideName(w.admissionRequest())
	r.Validated = w.admission.validated
	err := w.writer.Admission.Validate(w.Ctx, r)
	w.admission.validated = err == nil && w.Op == admission.Create
	return err
}

// admissionRequest returns the write in the form that plugins receive. The next call overwrites the result.
func (w *write) admissionRequest() *admission.Request {
	w.admission.request = admission.Request{
		Operation:   w.Op,
		Version:     w.Version,
		Target:      w.Target.Version,
		Resource:    resourceOf(w.Target),
		Subresource: w.Target.Subresource,
		Namespace:   w.Target.Namespace,
		Name:        w.Target.Name,
		User:        w.Caller.User,
		DryRun:      w.Caller.DryRun,
		PluginState: w.admission.request.PluginState,
		Objects:     pluginWrite{w},
		Reporter:    pluginWrite{w},
	}
	if w.admission.request.Name == "" {
		w.admission.request.Name = object.Name(w.Desired)
	}
	if w.Def == w.writer.namespaces() { // in upstream, the namespace of a Namespace object is its own name
		w.admission.request.Namespace = w.admission.request.Name
	}
	if w.Target.Subresource == "scale" {
		w.admission.request.Version = scales.Version
	}
	return &w.admission.request
}

// resourceOf returns the resource in the request's URL. For a POST to a subresource this is the resource of the
// parent object.
func resourceOf(t verb.Target) schema.GroupVersionResource {
	return t.Version.GroupVersion.WithResource(t.Version.Definition.Names.Plural)
}

// pluginWrite implements admission.Objects and admission.Reporter.
type pluginWrite struct{ *write }

// New implements admission.Objects.
func (a pluginWrite) New(ctx context.Context, at *resource.Version) (object.Tree, error) {
	if err := a.applyPluginObject(); err != nil {
		return nil, err
	}
	t := a.Desired
	switch {
	case a.Obj != nil:
		t = a.Obj
	case at == scales.Version:
		return object.Copy(a.scale.desired), nil
	case t == nil:
		return nil, nil
	}
	if at == scales.Version {
		return a.asScale(t)
	}
	out, err := a.At(t, at)
	return object.Copy(out), err
}

// Old implements admission.Objects.
func (a pluginWrite) Old(ctx context.Context, at *resource.Version) (object.Tree, error) {
	if a.Record == nil {
		return nil, nil
	}
	if at == scales.Version {
		if a.Obj != nil {
			return a.asScale(a.Live)
		}
		return object.Copy(a.scale.live), nil
	}
	if a.Live != nil && at == a.Version {
		return object.Copy(a.Live), nil
	}
	return a.View.Other(at).Tree(ctx, record.Packed(a.Record), a.Record.Modified)
}

// Replace implements admission.Objects.
func (a pluginWrite) Replace(ctx context.Context, t object.Tree, at *resource.Version) (err error) {
	a.replacements++
	a.Typed.PluginObj, a.Typed.Decoded = nil, nil
	if at == scales.Version {
		a.Desired, err = a.withScale(t)
		return err
	}
	if t, _, err = strategy.RulesOf(at).Normalize(&a.Write, t, strategy.FromAdmission); err == nil {
		a.Desired, err = a.At(t, a.Version)
	}
	return err
}

// Replaced implements admission.Objects.
func (a pluginWrite) Replaced() int { return a.replacements }

// Internal implements admission.Objects.
func (a pluginWrite) Internal() (obj, old resource.Internal, err error) {
	if a.Version.Type == nil || a.Version.Type.Internal == nil {
		return nil, nil, nil
	}
	if old, err = a.oldInternal(); err != nil || a.Typed.Obj != nil || a.Desired == nil {
		return a.Typed.Obj, old, err
	}
	if a.Typed.PluginObj == nil {
		a.Typed.PluginObj, err = a.DesiredInternal()
	}
	return a.Typed.PluginObj, old, err
}

// oldInternal returns the live object in the internal form, or nil if it does not exist.
func (w *write) oldInternal() (old resource.Internal, err error) {
	t := &w.Typed
	switch {
	case t.Old != nil || w.Record == nil:
		return t.Old, nil
	case t.PluginOld == nil && w.Live == nil:
		t.PluginOld, err = w.liveInternal()
	case t.PluginOld == nil:
		t.PluginOld, err = w.Version.Type.ToInternal(w.Live)
	}
	return t.PluginOld, verb.Status(err)
}

// applyPluginObject converts the internal object that plugins received to the new desired object. Plugins may have
// changed it.
func (w *write) applyPluginObject() error {
	obj := w.Typed.PluginObj
	if obj == nil {
		return nil
	}
	t, err := w.Version.Type.FromInternal(obj)
	if err != nil {
		return verb.Status(err)
	}
	object.CopyField(object.EnsureMetadata(t), object.Metadata(w.Desired), "managedFields")
	w.Typed.PluginObj, w.Typed.Decoded, w.Desired = nil, obj, t
	return nil
}

// Read implements admission.Objects.
func (a pluginWrite) Read(d *resource.Definition, namespace, name string) *object.Meta {
	guard := storage.Guard{Key: d.Key(namespace, name)}
	rec := a.head.Get(guard.Key)
	if rec != nil {
		guard.Revision = rec.Modified
	}
	a.guards = append(a.guards, guard)
	if rec == nil {
		return nil
	}
	return record.MetadataOf(rec).Meta
}

// Options implements admission.Objects. As in upstream, the type of the options depends on the operation and not on
// the verb. For example, a patch that creates the object has CreateOptions.
func (a pluginWrite) Options() runtime.Object {
	var dryRun []string
	var manager, validation string
	switch o := a.Caller.Options.(type) {
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
	if a.Op == admission.Create {
		of := metav1.TypeMeta{APIVersion: optionsVersion, Kind: "CreateOptions"}
		return &metav1.CreateOptions{TypeMeta: of, DryRun: dryRun, FieldManager: manager, FieldValidation: validation}
	}
	of := metav1.TypeMeta{APIVersion: optionsVersion, Kind: "UpdateOptions"}
	return &metav1.UpdateOptions{TypeMeta: of, DryRun: dryRun, FieldManager: manager, FieldValidation: validation}
}

var optionsVersion = metav1.SchemeGroupVersion.String()

// Warn implements admission.Reporter.
func (a pluginWrite) Warn(text string) { a.write.Warn(text) }

// Annotate implements admission.Reporter.
func (a pluginWrite) Annotate(key, value string) {
	if a.Caller.Annotate != nil {
		a.Caller.Annotate(key, value)
	}
}

// Step implements admission.Reporter.
func (a pluginWrite) Step(name string) func(error) { return a.step(name) }

// RecordStep implements admission.Reporter.
func (a pluginWrite) RecordStep(name string, took time.Duration, err error, before, after object.Tree) {
	a.Caller.Trace.Add(name, took, err, before, after)
}

// Traced implements admission.Reporter.
func (a pluginWrite) Traced() bool { return a.Caller.Trace != nil }

// WillBlock implements admission.Reporter.
func (a pluginWrite) WillBlock() { a.leaveQueue() }

// OnEnd implements admission.Reporter.
func (a pluginWrite) OnEnd(do func()) { a.admission.afterAll = append(a.admission.afterAll, do) }
