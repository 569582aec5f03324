package crdvalidation

import (
	"slices"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Structural schemas are described in the API documentation of CustomResourceDefinition ("Specifying a
// structural schema"): every value has one type, and junctors only restrict what is
// specified outside of them.

// unsupportedIn is why s cannot even be asked whether it is structural.
func unsupportedIn(s *schema) error {
	_, err := structuralschema.NewStructural(s)
	return err
}

func isNonStructural(s *schema) bool {
	errs, unsupported := NonStructural(s, nil)
	return unsupported != nil || len(errs) > 0
}

// NonStructural says why a schema is not structural: of an accepted CRD, the
// reason and message of the condition NonStructuralSchema, or nothing.
func NonStructural(s *schema, path *field.Path) (errs field.ErrorList, unsupported error) {
	structural, err := structuralschema.NewStructural(s)
	if err != nil {
		return nil, err
	}
	errs = structuralschema.ValidateStructural(path, structural)
	if slices.ContainsFunc(errs, isOfEmbeddedType) {
		structural, _ = structuralschema.NewStructural(s) // the validation has changed it
		(&structuralschema.Visitor{Structural: typeEmbedded}).Visit(structural)
		errs = structuralschema.ValidateStructural(path, structural)
	}
	return errs, nil
}

func isOfEmbeddedType(e *field.Error) bool {
	return e.Type == field.ErrorTypeRequired && e.Detail == "must be object if x-kubernetes-embedded-resource is true"
}

// typeEmbedded says of an embedded resource that it is an object, which upstream insists on being said.
func typeEmbedded(s *structuralschema.Structural) bool {
	typeless := s.XEmbeddedResource && s.Type == "" && !s.XIntOrString
	if typeless {
		s.Type = "object"
	}
	return typeless
}
