package engine

import (
	"context"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// strategyRules are the rules of a kind that k8s.io/kubernetes defines. Their methods divide upstream's
// rest.BeforeCreate and rest.BeforeUpdate into stages.
type strategyRules struct {
	v *resource.Version
	*resource.Strategy
}

// typedWrite holds the objects of a write in the internal form. Strategies use this form.
type typedWrite struct {
	ctx      context.Context   // result of strategyContext
	obj, old resource.Internal // old is nil for a create
	decoded  resource.Internal // desired after decoding; later stages may change desired's metadata
	// pluginObj is the desired object and pluginOld the live object in the form that plugins receive. Plugins may
	// change pluginObj.
	pluginObj, pluginOld resource.Internal
}

func (r strategyRules) normalize(w *write, t object.Tree, typed bool) (out object.Tree, unknown []string, err error) {
	if typed {
		return t, nil, nil
	}
	entries := object.Metadata(t)["managedFields"]
	regular, empty := regularList(entries, regularManagedFields)
	reuse := regular && !empty // entries in this form need no normalization
	if reuse {
		t = withoutManagedFields(t)
	}
	d, err := r.v.Type.Normalize(t)
	if err == nil && reuse {
		object.EnsureMetadata(d.Tree)["managedFields"] = entries
	}
	w.typed.decoded = d.Internal
	return d.Tree, d.Strict, err
}

func (r strategyRules) normalizeMerged(w *write, merged object.Tree) (object.Tree, error) {
	return w.mergeDecodeError(r.normalize(w, merged, false))
}

func (r strategyRules) fillDefaults(w *write, t object.Tree) (object.Tree, error) {
	out, _, err := r.normalize(w, t, false)
	return out, err
}

func (r strategyRules) ownableFields(subresource string) func(string) fieldpath.Filter {
	filters := r.ResetFields(subresource)
	return func(apiVersion string) fieldpath.Filter { return filters[fieldpath.APIVersion(apiVersion)] }
}

// authorize runs the additional authorization that some kinds need. It prevents privilege escalation through roles
// and role bindings.
func (w *write) authorize() error {
	s := w.def.Strategy
	if s == nil || s.Authorize == nil {
		return nil
	}
	obj, err := w.desiredInternal()
	w.typed.decoded = obj
	var old resource.Internal
	if err == nil && w.live != nil {
		old, err = w.v.Type.ToInternal(w.live)
	}
	if err != nil {
		return asInternalError(err)
	}
	return asUnknownError(s.Authorize(w.strategyContext(), obj, old))
}

func (r strategyRules) prepare(w *write) (err error) {
	t := &w.typed
	t.ctx = w.strategyContext()
	if t.obj, err = w.desiredInternal(); err != nil {
		return err
	}
	if w.op == admission.Create {
		if r.Prepare != nil {
			if err := r.Prepare(t.ctx, t.obj, nil); err != nil {
				return err
			}
		}
		r.Main.PrepareForCreate(t.ctx, t.obj)
		return nil
	}
	if w.old, err = w.liveAtStorage(); err != nil {
		return err
	}
	if t.old, err = toInternal(w.def.Storage.Type.LoadTree, w.old); err != nil {
		return asInternalError(err)
	}
	t.obj.SetGeneration(t.old.GetGeneration()) // the strategy increments it
	if r.Prepare != nil && w.target.Subresource == "" {
		if err := r.Prepare(t.ctx, t.obj, t.old); err != nil {
			return err
		}
	}
	r.Update(w.target.Subresource).PrepareForUpdate(t.ctx, t.obj, t.old)
	keepSystemFields(t.obj, t.old)
	return nil
}

// desiredInternal returns desired in the internal form. It returns the decoded object only the first time, because
// strategies modify the object.
func (w *write) desiredInternal() (resource.Internal, error) {
	obj := w.typed.decoded
	if obj == nil {
		obj, err := toInternal(w.v.Type.ToInternal, w.desired)
		return obj, asInternalError(err)
	}
	w.typed.decoded = nil
	md := objectMeta(w.desired)
	// The internal form of some kinds keeps labels and annotations in separate fields.
	md.Labels, md.Annotations = obj.GetLabels(), obj.GetAnnotations()
	*obj.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta) = *md
	return obj, nil
}

// toInternal converts t to the internal form. It leaves out the field sets in managedFields. Strategies do not use
// them, and they are the larger part of many objects.
func toInternal(convert func(object.Tree) (resource.Internal, error), t object.Tree) (resource.Internal, error) {
	obj, err := convert(withoutManagedFields(t))
	if err == nil {
		obj.SetManagedFields(managedFields(object.Metadata(t)))
	}
	return obj, err
}

// withoutManagedFields returns t without managedFields.
func withoutManagedFields(t object.Tree) object.Tree {
	t = object.ShallowCopy(t)
	delete(object.Metadata(t), "managedFields")
	return t
}

// keepSystemFields copies the metadata that an update never changes from old to obj, even if a strategy has cleared
// it.
func keepSystemFields(obj, old resource.Internal) {
	if obj.GetUID() == "" {
		obj.SetUID(old.GetUID())
	}
	if created := old.GetCreationTimestamp(); !created.IsZero() {
		obj.SetCreationTimestamp(created)
	}
	if deleted := old.GetDeletionTimestamp(); !deleted.IsZero() {
		obj.SetDeletionTimestamp(deleted)
	}
	if grace := old.GetDeletionGracePeriodSeconds(); grace != nil && obj.GetDeletionGracePeriodSeconds() == nil {
		obj.SetDeletionGracePeriodSeconds(grace)
	}
}

// liveInternal returns the live object in the internal form.
func (w *write) liveInternal() (resource.Internal, error) {
	old, err := w.def.Storage.Type.Load(w.rec.Value)
	if err != nil {
		return nil, asInternalError(err)
	}
	old.SetResourceVersion(strconv.FormatInt(w.rec.Modified, 10))
	return old, nil
}

func (r strategyRules) validate(w *write) (field.ErrorList, error) {
	t := &w.typed
	if t.old == nil {
		return validateCreate(t.ctx, t.obj, r.Main, r.Ignore), nil
	}
	return validateUpdate(t.ctx, t.obj, t.old, r.Update(w.target.Subresource), r.Ignore), nil
}

func (r strategyRules) warnings(w *write) []string {
	t := &w.typed
	if t.old == nil {
		return r.Main.WarningsOnCreate(t.ctx, t.obj)
	}
	return r.Update(w.target.Subresource).WarningsOnUpdate(t.ctx, t.obj, t.old)
}

func (r strategyRules) canonicalize(w *write) (err error) {
	obj := w.typed.obj
	r.Update(w.target.Subresource).Canonicalize(obj)
	managed := len(obj.GetManagedFields()) > 0
	obj.SetManagedFields(nil)
	if w.obj, err = r.v.Definition.Storage.Type.Stored(obj); err == nil && managed {
		object.CopyField(object.EnsureMetadata(w.obj), object.Metadata(w.desired), "managedFields")
	}
	return asInternalError(err)
}

func (r strategyRules) pack(w *write) (object.Packed, error) {
	if g := w.def.Behavior.Guards; g != nil {
		w.guards = append(w.guards, g(w.ctx, w.obj)...)
	}
	return object.Pack(w.obj, 0), nil
}
