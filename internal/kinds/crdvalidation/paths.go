package crdvalidation

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	crdschema "github.com/trellis-k8s/trellis/internal/crd/schema"
)

func selectableFields(fields []apiextensions.SelectableField, s *schema, parent *field.Path, o options,
	version string) (errs field.ErrorList) {
	path := parent.Child("selectableFields")
	if unsupported := structuralConversionError(s); unsupported != nil {
		errs = append(errs, field.Invalid(parent.Child("schema.openAPIV3Schema"), "", unsupported.Error()))
		s = nil // without a structural form, the schema has no fields
	}
	var seen []string
	for i, f := range fields {
		at := path.Index(i).Child("jsonPath")
		if f.JSONPath == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		found, err := resolve(f.JSONPath, s, false)
		if err != nil {
			errs = append(errs, field.Invalid(at, f.JSONPath, fmt.Sprintf("is an invalid path: %v", err)))
			continue
		}
		if found.names[0] == "metadata" {
			errs = append(errs, field.Invalid(at, f.JSONPath, "must not point to fields in metadata"))
		}
		if found.schema == nil || !slices.Contains([]string{"string", "boolean", "integer"}, found.schema.Type) {
			errs = append(errs, field.Invalid(at, f.JSONPath,
				"must point to a field of type string, boolean or integer. Enum string fields and strings with "+
					"formats are allowed."))
		}
		if name := strings.Join(found.names, "."); slices.Contains(seen, name) {
			errs = append(errs, field.Duplicate(at, f.JSONPath))
		} else {
			seen = append(seen, name)
		}
	}
	if len(seen) > validation.MaxSelectableFields && !o.manySelectable[version] {
		errs = append(errs, field.TooMany(path, len(seen), validation.MaxSelectableFields))
	}
	return errs
}

// target is the schema that a path leads to, with the names on the path.
type target struct {
	names  []string
	schema *schema // nil means any value
}

// resolve follows a JSON path from the schema s. If brackets is true, the path may have names in brackets.
func resolve(path string, s *schema, brackets bool) (target, error) {
	t := target{schema: s}
	err := crdschema.WalkFieldPath(path, brackets, func(name string) (err error) {
		t, err = t.below(name)
		return err
	})
	return t, err
}

func (t target) below(name string) (target, error) {
	next := target{names: append(slices.Clip(t.names), name)}
	switch {
	case t.schema != nil && len(t.schema.Properties) > 0:
		p, ok := t.schema.Properties[name]
		if !ok {
			return t, crdschema.ErrNoField
		}
		next.schema = &p
	case t.schema != nil && t.schema.AdditionalProperties != nil:
		next.schema = t.schema.AdditionalProperties.Schema
	default:
		return t, crdschema.ErrNoField
	}
	return next, nil
}
