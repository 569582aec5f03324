package schema

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// The section "Specifying a structural schema" in the documentation of CustomResourceDefinitions defines structural
// schemas. Each value has one type. Value validations (allOf, anyOf, oneOf, not) only restrict values that the schema
// specifies outside of these keywords.

// Violations returns the reasons why the schema n is not structural. If the server accepts the CRD, these reasons are
// the message of its condition NonStructuralSchema. unsupported is the error if the schema cannot be converted to
// upstream's structural form.
func (n *Node) Violations(path *field.Path) (errs field.ErrorList, unsupported error) {
	if n.isStructuralRoot() {
		return nil, nil
	}
	props, err := n.Upstream()
	if err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(props)
	if err != nil {
		return nil, err
	}
	errs = structuralschema.ValidateStructural(path, structural)
	if slices.ContainsFunc(errs, isOfEmbeddedType) {
		structural, _ = structuralschema.NewStructural(props) // the validation modified it
		(&structuralschema.Visitor{Structural: setEmbeddedType}).Visit(structural)
		errs = structuralschema.ValidateStructural(path, structural)
	}
	return errs, nil
}

// IsStructural reports whether the schema n is structural.
func (n *Node) IsStructural() bool {
	errs, unsupported := n.Violations(nil)
	return unsupported == nil && len(errs) == 0
}

// Upstream converts n to upstream's internal type.
func (n *Node) Upstream() (*apiextensions.JSONSchemaProps, error) {
	var v1 apiextensionsv1.JSONSchemaProps
	out := &apiextensions.JSONSchemaProps{}
	err := kjson.UnmarshalCaseSensitivePreserveInts(n.AppendJSON(nil), &v1)
	if err == nil {
		err = apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&v1, out, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("decode a schema: %w", err)
	}
	return out, nil
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

// isStructuralRoot reports whether the schema n of an object is structural. The result may be false for a structural
// schema with unusual keywords. The check is much faster than upstream's.
func (n *Node) isStructuralRoot() bool {
	return n.Type == "object" && n.Additional == nil && !n.Has(Unsupported) && n.isStructural(true)
}

// Keywords that are forbidden in a schema that is part of a value validation, and the only keywords that are allowed
// in the metadata of an object.
var (
	forbiddenInValidations = SetOf("type", "default", "title", "description", "nullable",
		"x-kubernetes-preserve-unknown-fields", "x-kubernetes-embedded-resource", "x-kubernetes-int-or-string",
		"x-kubernetes-list-map-keys", "x-kubernetes-list-type", "x-kubernetes-map-type", "x-kubernetes-validations")
	allowedInMetadata = SetOf("type", "properties")
)

func (n *Node) isStructural(root bool) bool {
	if n == nil {
		return true
	}
	switch {
	case n.Type == "array" && n.Items == nil, n.Type == "" && !n.IntOrString && !n.Preserve,
		n.IntOrString && (n.Preserve || n.Embedded),
		n.Embedded && (n.Type != "object" || n.Additional != nil || !n.Preserve && len(n.Properties) == 0),
		!n.hasStructuralMetadata(root), !n.hasStructuralValidations(root), !n.Items.isStructural(false),
		n.Additional != nil && !n.Additional.Schema.isStructural(false):
		return false
	}
	for _, child := range n.Properties {
		if !child.isStructural(false) {
			return false
		}
	}
	return true
}

func (n *Node) hasStructuralMetadata(root bool) bool {
	if !root && !n.Embedded {
		return true
	}
	for _, name := range []string{"apiVersion", "kind"} {
		if p := n.Properties[name]; p != nil && p.Type != "string" {
			return false
		}
	}
	md := n.Properties["metadata"]
	if md == nil {
		return true
	}
	if root {
		for name := range md.Properties {
			if name != "name" && name != "generateName" {
				return false
			}
		}
		if md.Set&^allowedInMetadata != 0 {
			return false
		}
	}
	return md.Type == "object"
}

func (n *Node) hasStructuralValidations(root bool) bool {
	c := n.Checks
	if c == nil {
		return true
	}
	outer := n
	if !root {
		outer = nil
	}
	intOrString := len(c.AllOf) > 0 && c.AllOf[0].Checks != nil && isIntOrString(c.AllOf[0].Checks.AnyOf)
	return c.areValidations(outer, isIntOrString(c.AnyOf), intOrString)
}

// areValidations reports whether the value validations of c may be part of a structural schema. If outer is not nil,
// they may only have fields and items that are in outer. The parameters skip name lists that consist of the two types
// of x-kubernetes-int-or-string: anyOf of c, and anyOf of the first schema in allOf.
func (c *Checks) areValidations(outer *Node, skipAnyOf, skipFirst bool) bool {
	if c == nil {
		return true
	}
	if c.Pattern != nil {
		if _, _, err := c.Pattern.Compile(); err != nil {
			return false
		}
	}
	if !skipAnyOf {
		for _, n := range c.AnyOf {
			if !n.isValidation(outer, false) {
				return false
			}
		}
	}
	for i, n := range c.AllOf {
		if !n.isValidation(outer, skipFirst && i == 0) {
			return false
		}
	}
	for _, n := range c.OneOf {
		if !n.isValidation(outer, false) {
			return false
		}
	}
	return c.Not == nil || c.Not.isValidation(outer, false)
}

// isValidation reports whether n may be a schema in a value validation.
func (n *Node) isValidation(outer *Node, skipAnyOf bool) bool {
	more := n.Additional != nil && (n.Additional.Schema != nil || n.Additional.Allows)
	if more || n.Set&forbiddenInValidations != 0 || !n.Checks.areValidations(outer, skipAnyOf, false) {
		return false
	}
	if n.Items != nil {
		var items *Node
		if outer != nil {
			if items = outer.Items; items == nil {
				return false
			}
		}
		if !n.Items.isValidation(items, false) {
			return false
		}
	}
	for name, child := range n.Properties {
		var property *Node
		if outer != nil {
			if property = outer.Properties[name]; property == nil {
				return false
			}
		}
		if name == "metadata" || !child.isValidation(property, false) {
			return false
		}
	}
	return true
}

// isIntOrString reports whether list consists of the two types of x-kubernetes-int-or-string.
func isIntOrString(list []*Node) bool {
	return len(list) == 2 && list[0].isOnlyType("integer") && list[1].isOnlyType("string")
}

func (n *Node) isOnlyType(typ string) bool { return n.Set == typeKeyword && n.Type == typ }
