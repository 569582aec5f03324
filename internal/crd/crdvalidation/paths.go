package crdvalidation

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

func selectableFields(fields []apiextensions.SelectableField, root *schema.Node, parent *field.Path, o options,
	version string) (errs field.ErrorList) {
	path := parent.Child("selectableFields")
	if root.Has(schema.Unsupported) {
		_, unsupported := root.Violations(nil)
		errs = append(errs, field.Invalid(parent.Child("schema.openAPIV3Schema"), "", unsupported.Error()))
		root = nil // without a structural form, the schema has no fields
	}
	var seen []string
	for i, f := range fields {
		at := path.Index(i).Child("jsonPath")
		if f.JSONPath == "" {
			errs = append(errs, field.Required(at, ""))
			continue
		}
		found, err := resolve(f.JSONPath, root, false)
		if err != nil {
			errs = append(errs, field.Invalid(at, f.JSONPath, fmt.Sprintf("is an invalid path: %v", err)))
			continue
		}
		if found.names[0] == "metadata" {
			errs = append(errs, field.Invalid(at, f.JSONPath, "must not point to fields in metadata"))
		}
		if found.node == nil || !slices.Contains([]string{"string", "boolean", "integer"}, found.node.Type) {
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
	names []string
	node  *schema.Node // nil means any value
}

// resolve follows a JSON path from the schema n. If brackets is true, the path may have names in brackets.
func resolve(path string, n *schema.Node, brackets bool) (target, error) {
	t := target{node: n}
	err := schema.WalkFieldPath(path, brackets, func(name string) error {
		next := (*schema.Node)(nil)
		switch {
		case t.node != nil && len(t.node.Properties) > 0:
			if next = t.node.Properties[name]; next == nil {
				return schema.ErrNoField
			}
		case t.node != nil && t.node.Additional != nil:
			next = t.node.Additional.Schema
		default:
			return schema.ErrNoField
		}
		t = target{append(slices.Clip(t.names), name), next}
		return nil
	})
	return t, err
}
