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

// hasStructuralTypes is what ValidateStructural leaves to others: a type is one of JSON's, and that of an embedded resource is
// said.
func (n *node) hasStructuralTypes() bool {
	return slices.Contains(jsonTypes, n.typ) && (!n.embedded || n.typ != "" || n.intOrString)
}

// isStructural asks upstream whether the JSON of a schema is structural. That of a CRD which prunes unknown fields need not
// be asked: such a CRD would not have been accepted.
func isStructural(text []byte) bool {
	var v1 apiextensionsv1.JSONSchemaProps
	var internal apiextensions.JSONSchemaProps
	if json.Unmarshal(text, &v1) != nil || apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&v1, &internal, nil) != nil {
		return false
	}
	s, err := structuralschema.NewStructural(&internal)
	return err == nil && len(structuralschema.ValidateStructural(nil, s)) == 0
}

// isIntOrString says whether nodes are the two types of x-kubernetes-int-or-string.
func isIntOrString(nodes []*node) bool {
	return len(nodes) == 2 && nodes[0].isType(`"integer"`) && nodes[1].isType(`"string"`)
}

// isType says whether n says its type and nothing else.
func (n *node) isType(typ string) bool {
	rest := *n
	rest.typ = ""
	if rest.allowsMore == "false" {
		rest.allowsMore = ""
	}
	return n.typ == typ && reflect.ValueOf(rest).IsZero()
}

// folded says whether the junctors already tell that n is an integer or a string.
func (n *node) folded() bool {
	return isIntOrString(n.junctors.anyOf) || len(n.junctors.allOf) > 0 && isIntOrString(n.junctors.allOf[0].junctors.anyOf)
}
