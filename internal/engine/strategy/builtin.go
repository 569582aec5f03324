package strategy

import (
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// builtinRules are the rules of a kind that is implemented in Go by its Behavior. They work on objects at the
// storage version.
type builtinRules struct{ v *resource.Version }

// Normalize implements Rules.
func (r builtinRules) Normalize(
	w *Write, t object.Tree, from Source,
) (out object.Tree, unknown []string, err error) {
	if r.v.Type != nil && (from == FromBody || from == FromApply) {
		d, err := r.v.Type.Normalize(t)
		if err != nil {
			return nil, nil, err
		}
		t, unknown = d.Tree, d.Strict
	}
	t, err = r.fillDefaults(w, t)
	return t, unknown, err
}

func (r builtinRules) fillDefaults(w *Write, t object.Tree) (object.Tree, error) {
	if versionDefault := r.v.Default; versionDefault != nil {
		versionDefault(t)
		return t, nil
	}
	fill := w.Def.Behavior.Default
	if fill == nil {
		return t, nil
	}
	if r.v.ConvertTo == nil {
		fill(t)
		return t, nil
	}
	stored, err := w.At(t, w.Def.Storage)
	if err != nil {
		return nil, err
	}
	fill(stored)
	return w.At(stored, r.v)
}

// OwnableFields implements Rules.
func (r builtinRules) OwnableFields(subresource string) func(string) fieldpath.Filter {
	except := exceptStatus
	switch {
	case !r.v.Status:
		return nil
	case subresource == "status":
		except = exceptSpec
	}
	return func(string) fieldpath.Filter { return except }
}

// Prepare implements Rules.
func (r builtinRules) Prepare(w *Write) error { return prepareTrees(w, w.Def.Storage, true) }

// Validate implements Rules.
func (r builtinRules) Validate(w *Write) (errs field.ErrorList, _ error) {
	sub := w.Target.Subresource
	if w.Old == nil {
		errs = validation.ValidateObjectMeta(object.ObjectMeta(w.Obj), r.v.Definition.Namespaced,
			validation.NameIsDNSSubdomain, field.NewPath("metadata"))
	} else {
		if errs = validateMetaUpdate(w); len(errs) > 0 { // upstream validates the metadata of a CRD twice
			errs = append(errs, validation.ValidateObjectMetaUpdate(
				object.ObjectMeta(w.Obj), object.ObjectMeta(w.Old), field.NewPath("metadata"))...)
		}
	}
	if f := r.v.Validate; f != nil {
		errs = append(errs, f(w.Desired, w.Obj, w.Old, sub)...)
	}
	return errs, nil
}

// AddWarnings implements Rules.
func (builtinRules) AddWarnings(w *Write) {
	if f := w.Def.Behavior.Warnings; f != nil {
		w.Warn(f(w.Obj, w.Old)...)
	}
}

// Canonicalize implements Rules.
func (builtinRules) Canonicalize(*Write) error { return nil }
