package engine

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/crd/cel"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// customRules are the rules of a kind that a CRD defines. They work on objects at the version of the request.
type customRules struct{ v *resource.Version }

func (r customRules) normalize(_ *write, t object.Tree, typed bool) (out object.Tree, unknown []string, err error) {
	if !typed {
		if t, unknown, err = r.normalizeType(t); err != nil {
			return nil, nil, err
		}
	}
	paths, err := normalizeMetadata(t)
	if err != nil {
		return nil, nil, err
	}
	if object.String(t, "kind") == r.v.Definition.Names.Kind { // validateType reports any other kind
		s, err := schemaOf(r.v)
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
	s, err := schemaOf(r.v)
	if err != nil {
		return nil, nil, err
	}
	d, err := r.v.Type.Normalize(t)
	if err == nil {
		s.Default(d.Tree) // removes nulls that Go types encode for unset fields
	}
	return d.Tree, d.Strict, err
}

func (r customRules) fillDefaults(w *write, t object.Tree) (object.Tree, error) {
	t, err := w.mergeDecodeError(r.normalizeType(t))
	if err != nil {
		return nil, err
	}
	s, err := schemaOf(r.v)
	if err != nil {
		return nil, err
	}
	s.FillDefaults(t)
	return t, nil
}

// ownableFields excludes the status from the fields that a write of the main resource may own. As in upstream, it
// does so only for fields at the version of the request.
func (r customRules) ownableFields(subresource string) func(string) fieldpath.Filter {
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

func (r customRules) prepare(w *write) error {
	w.obj, w.old = w.desired, w.live
	if w.op == admission.Create {
		if r.v.Status {
			delete(w.obj, "status")
		}
		object.SetGeneration(w.obj, 1)
		return nil
	}
	object.SetGeneration(w.obj, object.Generation(w.old))
	switch {
	case w.target.Subresource == "status":
		w.obj = statusOnly(w.obj, w.old)
	case r.v.Status:
		object.CopyField(w.obj, w.old, "status")
	}
	if w.target.Subresource != "status" && generationChanged(w.obj, w.old, r.v.Status) {
		object.SetGeneration(w.obj, object.Generation(w.old)+1)
	}
	return nil
}

// statusOnly returns old with the status and the managedFields of t.
func statusOnly(t, old object.Tree) object.Tree {
	out := object.ShallowCopy(old)
	object.CopyField(out, t, "status")
	object.CopyField(object.EnsureMetadata(out), object.Metadata(t), "managedFields")
	return out
}

// generationChanged reports whether t and old differ in a field that affects metadata.generation.
func generationChanged(t, old object.Tree, hasStatus bool) bool {
	ignore := func(key string) bool {
		return key == "metadata" || key == "apiVersion" || key == "kind" || key == "status" && hasStatus
	}
	for key, v := range t {
		if other, ok := old[key]; !ignore(key) && (!ok || !object.Equal(v, other)) {
			return true
		}
	}
	for key := range old {
		if _, ok := t[key]; !ok && !ignore(key) {
			return true
		}
	}
	return false
}

// validate returns all validation errors in upstream's order. If the object has the wrong kind, validate does not
// check its values.
func (r customRules) validate(w *write) (field.ErrorList, error) {
	errs := r.validateMeta(w)
	s, err := schemaOf(r.v)
	if err != nil {
		return nil, err
	}
	status := w.target.Subresource == "status"
	if typeErrs := validateType(r.v, w.obj); len(typeErrs) > 0 {
		errs = append(errs, typeErrs...)
	} else {
		if status {
			errs = append(errs, s.ValidateStatusValues(w.ctx, w.obj, w.old)...)
		} else {
			errs = append(errs, s.ValidateValues(w.ctx, w.obj, w.old)...)
		}
		if err := w.ctx.Err(); err != nil { // the validation was interrupted
			return nil, err
		}
		errs = append(errs, validateScale(r.v.Scale, w.obj, !status)...)
	}
	ctx := w.ctx
	if w.caller.Trace != nil {
		ctx = cel.CountCost(ctx, &w.caller.Trace.cost)
	}
	return s.ValidateExtensions(ctx, w.obj, w.old, status, func(text string) { w.warn(text) }, errs), nil
}

func (r customRules) validateMeta(w *write) field.ErrorList {
	path, namespaced := field.NewPath("metadata"), r.v.Definition.Namespaced
	if w.old != nil {
		return validateMetaUpdate(w)
	}
	md := objectMeta(w.obj)
	if len(validateType(r.v, w.obj)) > 0 ||
		len(validation.ValidateObjectMeta(md, namespaced, validation.NameIsDNSSubdomain, path)) == 0 {
		return nil
	}
	return validation.ValidateObjectMetaDeclaratively(w.ctx, operation.Create, md, nil, namespaced,
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

func (customRules) warnings(w *write) []string {
	if w.target.Subresource == "status" {
		return nil
	}
	return finalizerWarnings(addedItems(object.Finalizers(w.obj), object.Finalizers(w.old)))
}

func (customRules) canonicalize(*write) error { return nil }

// pack converts obj to the storage version. A read may change the stored object, for example by a default that the
// conversion has left out. In that case the object is marked fingerprintNotCanonical.
func (r customRules) pack(w *write) (object.Packed, error) {
	to := w.def.Storage
	if w.target.AsStored {
		to = r.v
	}
	s, err := schemaOf(to)
	if err != nil {
		return object.Packed{}, err
	}
	t, err := w.at(w.obj, to)
	if err != nil {
		return object.Packed{}, err
	}
	if !s.IsNormalized(t) {
		return object.Pack(t, fingerprintNotCanonical), nil
	}
	return object.Pack(t, s.Fingerprint()), nil
}

// normalizeMerged applies defaults to the result of an apply, and normalizes its metadata and the metadata of
// embedded resources. The merge has already applied the rest of the schema. If times or numbers that the server
// overwrites are malformed, they are dropped.
func (r customRules) normalizeMerged(w *write, t object.Tree) (object.Tree, error) {
	if _, err := normalizeMetadata(t); err != nil {
		md := object.EnsureMetadata(t)
		delete(md, "creationTimestamp")
		delete(md, "generation")
		if w.live == nil || w.target.Subresource != "" {
			delete(md, "deletionTimestamp")
			delete(md, "deletionGracePeriodSeconds")
		}
		if _, err := normalizeMetadata(t); err != nil {
			return nil, apierrors.NewInvalid(r.v.GroupVersionKind().GroupKind(), w.target.Name, field.ErrorList{
				field.Invalid(field.NewPath("metadata"), md, err.Error()),
			})
		}
	}
	s, err := schemaOf(r.v)
	if err != nil {
		return nil, err
	}
	_, _ = s.CoerceEmbedded(t) // the validation stage reports these errors
	return r.fillDefaults(w, t)
}
