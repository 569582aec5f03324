package crdvalidation

import (
	"slices"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The section "Specifying a structural schema" in the documentation of CustomResourceDefinitions defines structural
// schemas. Each value has one type. Value validations (allOf, anyOf, oneOf, not) only restrict values that the schema
// specifies outside of these keywords.

// structuralConversionError returns the error of the conversion of s to upstream's structural form.
func structuralConversionError(s *schema) error {
	_, err := structuralschema.NewStructural(s)
	return err
}

func isNonStructural(s *schema) bool {
	errs, unsupported := NonStructural(s, nil)
	return unsupported != nil || len(errs) > 0
}

// NonStructural returns the reasons why a schema is not structural. If the server accepts the CRD, these reasons are
// the message of its condition NonStructuralSchema. unsupported is the error if the schema cannot be converted to
// upstream's structural form.
func NonStructural(s *schema, path *field.Path) (errs field.ErrorList, unsupported error) {
	structural, err := structuralschema.NewStructural(s)
	if err != nil {
		return nil, err
	}
	errs = structuralschema.ValidateStructural(path, structural)
	if slices.ContainsFunc(errs, isOfEmbeddedType) {
		structural, _ = structuralschema.NewStructural(s) // the validation modified it
		(&structuralschema.Visitor{Structural: setEmbeddedType}).Visit(structural)
		errs = structuralschema.ValidateStructural(path, structural)
	}
	return errs, nil
}

func isOfEmbeddedType(e *field.Error) bool {
	return e.Type == field.ErrorTypeRequired && e.Detail == "must be object if x-kubernetes-embedded-resource is true"
}

// setEmbeddedType sets type: object on an embedded resource without a type, because upstream requires an explicit
// type.
func setEmbeddedType(s *structuralschema.Structural) bool {
	typeless := s.XEmbeddedResource && s.Type == "" && !s.XIntOrString
	if typeless {
		s.Type = "object"
	}
	return typeless
}
