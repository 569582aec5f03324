package engine

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/api/validation"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// pathSegment checks that a name is a valid path segment. This is the minimum requirement for all names.
func pathSegment(name string, prefix bool) []string {
	if prefix {
		return content.IsPathSegmentPrefix(name)
	}
	return content.IsPathSegmentName(name)
}

// limit returns an error if the object exceeds an item limit of its kind.
func (w *write) limit() error {
	var errs field.ErrorList
	for i := range w.def.ItemLimits {
		if err := w.def.ItemLimits[i].Check(w.desired); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return w.invalid(errs)
}

// validate validates the object.
func (w *write) validate() error {
	if err := w.limit(); err != nil { // admission may have added items
		return err
	}
	errs, err := w.rules.validate(w)
	if err != nil || len(errs) == 0 {
		return err
	}
	return w.invalid(errs)
}

// warnings adds the warnings for a valid object.
func (w *write) warnings() error {
	w.warn(w.rules.warnings(w)...)
	return nil
}

func (w *write) invalid(errs field.ErrorList) error {
	gk := w.v.GroupVersionKind().GroupKind()
	switch {
	case w.def.Custom != nil: // as in upstream, the kind that the object contains
		apiVersion, kind := object.String(w.desired, "apiVersion"), object.String(w.desired, "kind")
		gk = schema.FromAPIVersionAndKind(apiVersion, kind).GroupKind()
	case w.def.Strategy != nil:
		gk = w.def.Strategy.ErrorKind
	}
	return newInvalid(gk, w.name(), errs)
}

// validateMetaUpdate validates metadata. It also validates unchanged metadata, which may come from a conversion
// webhook or from the store of another server. Upstream's validation takes a tenth of the time of an update. It is
// skipped if the metadata is unchanged and has the usual form.
func validateMetaUpdate(w *write) field.ErrorList {
	path := field.NewPath("metadata")
	if md := object.Metadata(w.obj); sameMetadata(md, object.Metadata(w.old)) && usualMetadata(md) {
		entries := managedFields(object.Metadata(w.obj))
		return metavalidation.ValidateManagedFields(entries, path.Child("managedFields"))
	}
	md, oldMeta := objectMeta(w.obj), objectMeta(w.old)
	errs := validation.ValidateObjectMeta(md, w.def.Namespaced, pathSegment, path)
	errs = append(errs, validation.ValidateObjectMetaUpdate(md, oldMeta, path)...)
	if len(errs) > 0 && w.def.Custom != nil && len(validateType(w.v, w.obj)) == 0 {
		errs = append(errs, validation.ValidateObjectMetaDeclaratively(w.ctx, operation.Update, md, oldMeta,
			w.def.Namespaced, nil, path, true)...)
	}
	return errs
}

// sameMetadata reports whether a and b have the same metadata, as far as it needs validation.
func sameMetadata(a, b object.Tree) bool {
	return containsFields(a, b) && containsFields(b, a)
}

// containsFields reports whether b has all fields of a that need validation, with equal values.
func containsFields(a, b object.Tree) bool {
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

// addedItems returns the items of after that are missing in before.
func addedItems(after, before []string) []string {
	if slices.Equal(after, before) {
		return nil
	}
	old := sets.New(before...)
	return slices.DeleteFunc(slices.Clone(after), old.Has)
}

// deletionStarted reports whether an object is marked for deletion.
func deletionStarted(t object.Tree) bool { return object.DeletionTimestamp(t) != "" }

// immediate reports whether an object's deletion has no grace period. It then waits only for finalizers.
func immediate(t object.Tree) bool {
	grace, _ := object.Metadata(t)["deletionGracePeriodSeconds"].(int64)
	return grace == 0
}
