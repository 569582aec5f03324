package engine

import (
	"maps"

	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// builtinRules are the rules of a kind that is implemented in Go by its Behavior. They work on objects at the
// storage version.
type builtinRules struct{ v *resource.Version }

func (r builtinRules) behavior() *resource.Behavior { return &r.v.Definition.Behavior }

func (r builtinRules) normalize(w *write, t object.Tree, typed bool) (out object.Tree, unknown []string, err error) {
	if r.v.Type != nil && !typed {
		d, err := r.v.Type.Normalize(t)
		if err != nil {
			return nil, nil, err
		}
		t, unknown = d.Tree, d.Strict
	}
	t, err = r.fillDefaults(w, t)
	return t, unknown, err
}

func (r builtinRules) normalizeMerged(w *write, merged object.Tree) (object.Tree, error) {
	return w.mergeDecodeError(r.normalize(w, merged, false))
}

func (r builtinRules) fillDefaults(w *write, t object.Tree) (object.Tree, error) {
	if versionDefault := r.v.Default; versionDefault != nil {
		versionDefault(t)
		return t, nil
	}
	fill := r.behavior().Default
	if fill == nil {
		return t, nil
	}
	if r.v.ConvertTo == nil {
		fill(t)
		return t, nil
	}
	stored, err := w.at(t, w.def.Storage)
	if err != nil {
		return nil, err
	}
	fill(stored)
	return w.at(stored, r.v)
}

func (r builtinRules) ownableFields(subresource string) func(string) fieldpath.Filter {
	except := exceptStatus
	switch {
	case !r.v.Status:
		return nil
	case subresource == "status":
		except = exceptSpec
	}
	return func(string) fieldpath.Filter { return except }
}

func (r builtinRules) prepare(w *write) (err error) {
	if w.op == admission.Create {
		return r.prepareCreate(w)
	}
	if w.old, err = w.liveAtStorage(); err != nil {
		return err
	}
	if w.obj, err = w.at(w.desired, w.def.Storage); err != nil {
		return err
	}
	object.SetGeneration(w.obj, object.Generation(w.old))
	sub := w.target.Subresource
	switch {
	case sub == "status":
		from := w.obj
		w.obj = maps.Clone(w.old)
		object.CopyField(w.obj, from, "status")
		object.CopyField(w.obj, from, "metadata")
	case r.v.Status:
		object.CopyField(w.obj, w.old, "status")
	}
	if prepare := r.behavior().PrepareUpdate; prepare != nil {
		w.obj = object.Copy(w.obj) // the next attempt needs the unmodified body
		if err := prepare(w.ctx, w.obj, w.old, sub); err != nil {
			return err
		}
	}
	if sub != "status" && generationChanged(w.obj, w.old, r.v.Status) {
		object.SetGeneration(w.obj, object.Generation(w.old)+1)
	}
	return nil
}

func (r builtinRules) prepareCreate(w *write) (err error) {
	if r.v.Status {
		delete(w.desired, "status")
	}
	object.SetGeneration(w.desired, 1)
	if w.obj, err = w.at(w.desired, w.def.Storage); err != nil {
		return err
	}
	if prepare := r.behavior().PrepareCreate; prepare != nil {
		w.obj = object.Copy(w.obj) // the next attempt needs the unmodified body
		return prepare(w.ctx, w.obj)
	}
	return nil
}

// liveAtStorage returns the live object at the storage version.
func (w *write) liveAtStorage() (object.Tree, error) {
	storage := w.def.Storage
	switch {
	case w.v == storage:
		return w.live, nil
	case conversion.Trivial(storage, w.v):
		old := maps.Clone(w.live)
		old["apiVersion"] = storage.APIVersion
		return old, nil
	}
	return w.engine.readerAt(storage).tree(w.ctx, packed(w.rec), w.rec.Modified)
}

func (r builtinRules) validate(w *write) (errs field.ErrorList, _ error) {
	sub := w.target.Subresource
	if w.old == nil {
		errs = validation.ValidateObjectMeta(objectMeta(w.obj), r.v.Definition.Namespaced,
			validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	} else {
		if errs = validateMetaUpdate(w); len(errs) > 0 { // upstream validates the metadata of a CRD twice
			errs = append(errs, validation.ValidateObjectMetaUpdate(
				objectMeta(w.obj), objectMeta(w.old), field.NewPath("metadata"))...)
		}
	}
	if f := r.v.Validate; f != nil {
		errs = append(errs, f(w.desired, w.obj, w.old, sub)...)
	}
	return errs, nil
}

func (r builtinRules) warnings(w *write) []string {
	if f := r.behavior().Warnings; f != nil {
		return f(w.obj, w.old)
	}
	return nil
}

func (builtinRules) canonicalize(*write) error { return nil }

func (r builtinRules) pack(w *write) (object.Packed, error) {
	w.obj["apiVersion"] = r.v.Definition.Storage.APIVersion
	if g := r.behavior().Guards; g != nil {
		w.guards = append(w.guards, g(w.ctx, w.obj)...)
	}
	return object.Pack(w.obj, 0), nil
}
