package openapi

import (
	"encoding/json"
	"reflect"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

var jsonTypes = []string{"", `"string"`, `"number"`, `"integer"`, `"boolean"`, `"array"`, `"object"`}

// hasStructuralTypes checks two rules of structural schemas that ValidateStructural does not check: the type must
// be a JSON type, and an embedded resource must have a type.
func (n *node) hasStructuralTypes() bool {
	return slices.Contains(jsonTypes, n.typ) && (!n.embedded || n.typ != "" || n.intOrString)
}

// isStructural reports whether the JSON of a schema is structural, by upstream's validation. Only a CRD that
// preserves unknown fields can have a schema that is not structural.
func isStructural(text []byte) bool {
	var v1 apiextensionsv1.JSONSchemaProps
	var internal apiextensions.JSONSchemaProps
	convert := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps
	if json.Unmarshal(text, &v1) != nil || convert(&v1, &internal, nil) != nil {
		return false
	}
	s, err := structuralschema.NewStructural(&internal)
	return err == nil && len(structuralschema.ValidateStructural(nil, s)) == 0
}

// isIntOrString reports whether nodes are the two types of x-kubernetes-int-or-string.
func isIntOrString(nodes []*node) bool {
	return len(nodes) == 2 && nodes[0].isType(`"integer"`) && nodes[1].isType(`"string"`)
}

// isType reports whether n has the given type and no other keyword.
func (n *node) isType(typ string) bool {
	rest := *n
	rest.typ = ""
	if rest.additionalBool == "false" {
		rest.additionalBool = ""
	}
	return n.typ == typ && reflect.ValueOf(rest).IsZero()
}

// hasIntOrString reports whether the value validations of n already restrict it to an integer or a string.
func (n *node) hasIntOrString() bool {
	v := n.validations
	return isIntOrString(v.anyOf) || len(v.allOf) > 0 && isIntOrString(v.allOf[0].validations.anyOf)
}
