package engine

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// maxProblems is how many problems of one object are told: the time that it takes to word them grows with
// the square of their number. Upstream tells all.
const maxProblems = 1000

// pathSegment is what every name must at least be.
func pathSegment(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

// validateCreate checks a new object and gives the warnings for it.
func (w *writing) validateCreate(ctx context.Context, t object.Tree) error {
	md := objectMeta(t)
	path := field.NewPath("metadata")
	var errs field.ErrorList
	if w.def.Custom != nil {
		if len(w.validateType(t)) == 0 && len(validation.ValidateObjectMeta(md, w.def.Namespaced, validation.NameIsDNSSubdomain, path)) > 0 {
			errs = validation.ValidateObjectMetaDeclaratively(ctx, operation.Create, md, nil,
				w.def.Namespaced, validation.NameIsDNSSubdomain, path, true)
		}
		var err error
		if errs, err = w.validateCustom(ctx, t, nil, errs); err != nil {
			return err
		}
	} else {
		name := validation.ValidateNameFunc(pathSegment)
		if f := w.def.Behavior.ValidateName; f != nil {
			name = f
		}
		errs = validation.ValidateObjectMeta(md, w.def.Namespaced, name, path)
		if f := w.def.Behavior.Validate; f != nil {
			errs = append(errs, f(t)...)
		}
		if f := w.v.Validate; f != nil {
			errs = append(errs, f(w.form, t, nil, "")...)
		}
	}
	if len(errs) > 0 {
		return w.invalid(t, errs)
	}
	if w.def.Custom != nil {
		w.warn(finalizerWarnings(md.Finalizers)...)
	}
	if f := w.def.Behavior.Warnings; f != nil {
		w.warn(f(t, nil)...)
	}
	return nil
}

// validateCustom appends to errs, those of metadata, what else is wrong with an object of a custom kind,
// in upstream's order; old is nil on a create. An object of another type is not looked at by its values.
//
// Validating admission belongs behind it, when all has passed.
func (w *writing) validateCustom(ctx context.Context, t, old object.Tree, errs field.ErrorList) (field.ErrorList, error) {
	s, err := schemaOf(w.v)
	if err != nil {
		return nil, err
	}
	warn := func(text string) { w.warn(text) }
	status := w.target.Subresource == "status"
	if wrong := w.validateType(t); len(wrong) > 0 {
		errs = append(errs, wrong...)
	} else {
		if status {
			errs = append(errs, s.ValidateStatusValues(t, old)...)
		} else {
			errs = append(errs, s.ValidateValues(t, old)...)
		}
		errs = append(errs, w.validateScale(t, !status)...)
	}
	return s.ValidateExtensions(ctx, t, old, status, warn, errs), nil
}

func (w *writing) invalid(t object.Tree, errs field.ErrorList) error {
	gk := w.v.GroupVersionKind().GroupKind()
	if w.def.Custom != nil { // it tells what the object says it is
		gk = schema.FromAPIVersionAndKind(object.String(t, "apiVersion"), object.String(t, "kind")).GroupKind()
	}
	return apierrors.NewInvalid(gk, object.Name(t), errs[:min(len(errs), maxProblems)])
}

// validateUpdate checks t, which is to replace old.
func (w *writing) validateUpdate(ctx context.Context, t, old object.Tree) error {
	errs := w.validateMetaUpdate(ctx, t, old)
	if w.def.Custom != nil {
		var err error
		if errs, err = w.validateCustom(ctx, t, old, errs); err != nil {
			return err
		}
	} else {
		if f := w.def.Behavior.ValidateUpdate; f != nil {
			errs = append(errs, f(t, old, w.target.Subresource)...)
		}
		if f := w.def.Behavior.Validate; f != nil && w.target.Subresource == "" {
			errs = append(errs, f(t)...)
		}
		if f := w.v.Validate; f != nil {
			errs = append(errs, f(w.form, t, old, w.target.Subresource)...)
		}
	}
	if len(errs) > 0 {
		return w.invalid(t, errs)
	}
	if w.def.Custom != nil && w.target.Subresource != "status" {
		w.warn(finalizerWarnings(added(object.Finalizers(t), object.Finalizers(old)))...)
	}
	if f := w.def.Behavior.Warnings; f != nil {
		w.warn(f(t, old)...)
	}
	return nil
}

// validateMetaUpdate checks metadata, unless only the parts differ that the server itself writes.
func (w *writing) validateMetaUpdate(ctx context.Context, t, old object.Tree) field.ErrorList {
	path := field.NewPath("metadata")
	if sameMetadata(object.Metadata(t), object.Metadata(old)) {
		entries := managedFields(object.Metadata(t))
		return metavalidation.ValidateManagedFields(entries, path.Child("managedFields"))
	}
	md, oldMeta := objectMeta(t), objectMeta(old)
	errs := validation.ValidateObjectMeta(md, w.def.Namespaced, pathSegment, path)
	errs = append(errs, validation.ValidateObjectMetaUpdate(md, oldMeta, path)...)
	if len(errs) > 0 && w.def.Custom != nil && len(w.validateType(t)) == 0 {
		errs = append(errs, validation.ValidateObjectMetaDeclaratively(ctx, operation.Update, md, oldMeta,
			w.def.Namespaced, nil, path, true)...)
	}
	return errs
}

// sameMetadata compares all metadata but what does not need validation.
func sameMetadata(a, b object.Tree) bool {
	return covers(a, b) && covers(b, a)
}

func covers(a, b object.Tree) bool {
	for key, v := range a {
		switch key {
		case "managedFields", "resourceVersion", "generation":
			continue
		}
		if other, ok := b[key]; !ok || !object.Equal(v, other) {
			return false
		}
	}
	return true
}

// validateType finds an object of another type than the endpoint serves.
func (w *writing) validateType(t object.Tree) (errs field.ErrorList) {
	if kind := object.String(t, "kind"); kind != w.def.Names.Kind {
		errs = append(errs, field.Invalid(field.NewPath("kind"), kind, "must be "+w.def.Names.Kind))
	}
	if v := object.String(t, "apiVersion"); v != w.v.APIVersion {
		errs = append(errs, field.Invalid(field.NewPath("apiVersion"), v, "must be "+w.v.APIVersion))
	}
	return errs
}

// added lists what is in after but not in before.
func added(after, before []string) []string {
	if slices.Equal(after, before) {
		return nil
	}
	known := sets.New(before...)
	return slices.DeleteFunc(slices.Clone(after), known.Has)
}

// deletionStarted reports whether an object has been asked to go.
func deletionStarted(t object.Tree) bool { return object.DeletionTimestamp(t) != "" }

// immediate reports whether an object's deletion waits for finalizers only.
func immediate(t object.Tree) bool {
	grace, _ := object.Metadata(t)["deletionGracePeriodSeconds"].(int64)
	return grace == 0
}
