package strategy

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/scales"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// customRules are the rules of a kind that a CRD defines. They work on objects at the version of the request.
type customRules struct{ v *resource.Version }

// Normalize implements Rules.
func (r customRules) Normalize(
	w *Write, t object.Tree, from Source,
) (out object.Tree, unknown []string, err error) {
	switch from {
	case FromApply:
		out, err = r.normalizeMerged(w, t)
		return out, nil, err
	case FromAdmission:
		dropInvalidMetadata(t)
		out, err = r.fillDefaults(w, t)
		return out, nil, err
	case FromBody:
		if t, unknown, err = r.normalizeType(t); err != nil {
			return nil, nil, err
		}
	}
	paths, err := normalizeMetadata(t)
	if err != nil {
		return nil, nil, err
	}
	if object.String(t, "kind") == r.v.Definition.Names.Kind { // validateType reports any other kind
		s, err := record.SchemaOf(r.v)
		if err != nil {
			return nil, nil, err
		}
		pruned, typeErr := s.Normalize(t)
		if typeErr != nil {
			return nil, nil, typeErr
		}
		paths = append(paths, pruned...)
	}
	for _, p := range paths {
		unknown = append(unknown, `unknown field "`+p+`"`)
	}
	return t, unknown, nil
}

// normalizeType converts t to the form of the kind's Go type, if the kind has a Go type.
func (r customRules) normalizeType(t object.Tree) (out object.Tree, unknown []string, err error) {
	if r.v.Type == nil {
		return t, nil, nil
	}
	s, err := record.SchemaOf(r.v)
	if err != nil {
		return nil, nil, err
	}
	d, err := r.v.Type.Normalize(t)
	if err == nil {
		s.Default(d.Tree) // removes nulls that Go types encode for unset fields
	}
	return d.Tree, d.Strict, err
}

// normalizeMerged applies defaults to the result of an apply, and normalizes its metadata and the metadata of
// embedded resources. The merge has already applied the rest of the schema. If times or numbers that the server
// overwrites are malformed, they are dropped.
func (r customRules) normalizeMerged(w *Write, t object.Tree) (object.Tree, error) {
	if _, err := normalizeMetadata(t); err != nil {
		md := object.EnsureMetadata(t)
		delete(md, "creationTimestamp")
		delete(md, "generation")
		if w.Live == nil || w.Target.Subresource != "" {
			delete(md, "deletionTimestamp")
			delete(md, "deletionGracePeriodSeconds")
		}
		if _, err := normalizeMetadata(t); err != nil {
			return nil, apierrors.NewInvalid(r.v.GroupVersionKind().GroupKind(), w.Target.Name, field.ErrorList{
				field.Invalid(field.NewPath("metadata"), md, err.Error()),
			})
		}
	}
	s, err := record.SchemaOf(r.v)
	if err != nil {
		return nil, err
	}
	_, _ = s.CoerceEmbedded(t) // the validation stage reports these errors
	return r.fillDefaults(w, t)
}

// fillDefaults applies the defaults to an object that the server has changed.
func (r customRules) fillDefaults(w *Write, t object.Tree) (object.Tree, error) {
	t, _, err := r.normalizeType(t)
	if err != nil {
		return nil, w.Undecodable(w.Def.Names.Kind, err.Error())
	}
	s, err := record.SchemaOf(r.v)
	if err != nil {
		return nil, err
	}
	s.FillDefaults(t)
	return t, nil
}

// OwnableFields excludes the status from the fields that a write of the main resource may own. As in upstream, it
// does so only for fields at the version of the request.
// OwnableFields implements Rules.
func (r customRules) OwnableFields(subresource string) func(string) fieldpath.Filter {
	switch {
	case subresource == "status":
		return func(string) fieldpath.Filter { return onlyStatus }
	case subresource == "" && r.v.Status:
		return func(apiVersion string) fieldpath.Filter {
			if apiVersion != r.v.APIVersion {
				return nil
			}
			return exceptStatus
		}
	}
	return nil
}

// Prepare implements Rules.
func (r customRules) Prepare(w *Write) error { return prepareTrees(w, r.v, false) }

// Validate returns all validation errors in upstream's order. If the object has the wrong kind, validate does not
// check its values.
// Validate implements Rules.
func (r customRules) Validate(w *Write) (field.ErrorList, error) {
	errs := r.validateMeta(w)
	s, err := record.SchemaOf(r.v)
	if err != nil {
		return nil, err
	}
	status := w.Target.Subresource == "status"
	if typeErrs := validateType(r.v, w.Obj); len(typeErrs) > 0 {
		errs = append(errs, typeErrs...)
	} else {
		if status {
			errs = append(errs, s.ValidateStatusValues(w.Ctx, w.Obj, w.Old)...)
		} else {
			errs = append(errs, s.ValidateValues(w.Ctx, w.Obj, w.Old)...)
		}
		if err := w.Ctx.Err(); err != nil { // the validation was interrupted
			return nil, err
		}
		errs = append(errs, scales.Validate(r.v.Scale, w.Obj, !status)...)
	}
	ctx := w.Caller.Trace.CountCost(w.Ctx)
	return s.ValidateExtensions(ctx, w.Obj, w.Old, status, func(text string) { w.Warn(text) }, errs), nil
}

func (r customRules) validateMeta(w *Write) field.ErrorList {
	path, namespaced := field.NewPath("metadata"), r.v.Definition.Namespaced
	if w.Old != nil {
		return validateMetaUpdate(w)
	}
	md := object.ObjectMeta(w.Obj)
	if len(validateType(r.v, w.Obj)) > 0 ||
		len(validation.ValidateObjectMeta(md, namespaced, validation.NameIsDNSSubdomain, path)) == 0 {
		return nil
	}
	return validation.ValidateObjectMetaDeclaratively(w.Ctx, operation.Create, md, nil, namespaced,
		validation.NameIsDNSSubdomain, path, true)
}

// validateType returns errors for an apiVersion or kind that the endpoint does not serve.
func validateType(v *resource.Version, t object.Tree) (errs field.ErrorList) {
	if kind := object.String(t, "kind"); kind != v.Definition.Names.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), kind, "must be "+v.Definition.Names.Kind))
	}
	if apiVersion := object.String(t, "apiVersion"); apiVersion != v.APIVersion {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), apiVersion, "must be "+v.APIVersion))
	}
	return errs
}

// AddWarnings implements Rules.
func (customRules) AddWarnings(w *Write) {
	if w.Target.Subresource != "status" {
		w.Warn(finalizerWarnings(addedItems(object.Finalizers(w.Obj), object.Finalizers(w.Old)))...)
	}
}

// Canonicalize implements Rules.
func (customRules) Canonicalize(*Write) error { return nil }
