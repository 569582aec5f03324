package strategy

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// strategyRules are the rules of a kind that k8s.io/kubernetes defines. Their methods divide upstream's
// rest.BeforeCreate and rest.BeforeUpdate into stages.
type strategyRules struct {
	v *resource.Version
	*resource.Strategy
}

// Typed holds the objects of a write in the internal form. Strategies use this form.
type Typed struct {
	Ctx      context.Context   // result of strategyContext
	Obj, Old resource.Internal // old is nil for a create
	Decoded  resource.Internal // desired after decoding; later stages may change desired's metadata
	// PluginObj is the desired object and pluginOld the live object in the form that plugins receive. Plugins may
	// change pluginObj.
	PluginObj, PluginOld resource.Internal
}

// Normalize implements Rules.
func (r strategyRules) Normalize(
	w *Write, t object.Tree, from Source,
) (out object.Tree, unknown []string, err error) {
	if from == FromType {
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
	w.Typed.Decoded = d.Internal
	return d.Tree, d.Strict, err
}

// OwnableFields implements Rules.
func (r strategyRules) OwnableFields(subresource string) func(string) fieldpath.Filter {
	filters := r.ResetFields(subresource)
	return func(apiVersion string) fieldpath.Filter { return filters[fieldpath.APIVersion(apiVersion)] }
}

// Authorize runs the additional authorization that some kinds need. It prevents privilege escalation through roles
// and role bindings.
func (w *Write) Authorize() error {
	s := w.Def.Strategy
	if s == nil || s.Authorize == nil {
		return nil
	}
	obj, err := w.DesiredInternal()
	w.Typed.Decoded = obj
	var old resource.Internal
	if err == nil && w.Live != nil {
		old, err = w.Version.Type.ToInternal(w.Live)
	}
	if err != nil {
		return verb.Status(err)
	}
	return verb.Unknown(s.Authorize(w.StrategyContext(), obj, old))
}

// Prepare implements Rules.
func (r strategyRules) Prepare(w *Write) (err error) {
	t := &w.Typed
	t.Ctx = w.StrategyContext()
	if t.Obj, err = w.DesiredInternal(); err != nil {
		return err
	}
	if w.Op == admission.Create {
		if r.Strategy.Prepare != nil {
			if err := r.Strategy.Prepare(t.Ctx, t.Obj, nil); err != nil {
				return err
			}
		}
		r.Main.PrepareForCreate(t.Ctx, t.Obj)
		return nil
	}
	if w.Old, err = w.LiveAt(w.Def.Storage); err != nil {
		return err
	}
	if t.Old, err = toInternal(w.Def.Storage.Type.LoadTree, w.Old); err != nil {
		return verb.Status(err)
	}
	t.Obj.SetGeneration(t.Old.GetGeneration()) // the strategy increments it
	if r.Strategy.Prepare != nil && w.Target.Subresource == "" {
		if err := r.Strategy.Prepare(t.Ctx, t.Obj, t.Old); err != nil {
			return err
		}
	}
	r.Update(w.Target.Subresource).PrepareForUpdate(t.Ctx, t.Obj, t.Old)
	keepSystemFields(t.Obj, t.Old)
	return nil
}

// DesiredInternal returns desired in the internal form. It returns the decoded object only the first time, because
// strategies modify the object.
func (w *Write) DesiredInternal() (resource.Internal, error) {
	obj := w.Typed.Decoded
	if obj == nil {
		obj, err := toInternal(w.Version.Type.ToInternal, w.Desired)
		return obj, verb.Status(err)
	}
	w.Typed.Decoded = nil
	md := object.ObjectMeta(w.Desired)
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
		obj.SetManagedFields(object.ManagedFields(t))
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

// Validate implements Rules.
func (r strategyRules) Validate(w *Write) (field.ErrorList, error) {
	t := &w.Typed
	if t.Old == nil {
		return validateCreate(t.Ctx, t.Obj, r.Main, r.Ignore), nil
	}
	return validateUpdate(t.Ctx, t.Obj, t.Old, r.Update(w.Target.Subresource), r.Ignore), nil
}

// AddWarnings implements Rules.
func (r strategyRules) AddWarnings(w *Write) {
	t := &w.Typed
	if t.Old == nil {
		w.Warn(r.Main.WarningsOnCreate(t.Ctx, t.Obj)...)
	} else {
		w.Warn(r.Update(w.Target.Subresource).WarningsOnUpdate(t.Ctx, t.Obj, t.Old)...)
	}
}

// Canonicalize implements Rules.
func (r strategyRules) Canonicalize(w *Write) (err error) {
	obj := w.Typed.Obj
	r.Update(w.Target.Subresource).Canonicalize(obj)
	managed := len(obj.GetManagedFields()) > 0
	obj.SetManagedFields(nil)
	if w.Obj, err = r.v.Definition.Storage.Type.Stored(obj); err == nil && managed {
		object.CopyField(object.EnsureMetadata(w.Obj), object.Metadata(w.Desired), "managedFields")
	}
	return verb.Status(err)
}
