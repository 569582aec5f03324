package crd

import (
	"encoding/json"
	"slices"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestNonStructuralSchema checks that a non-structural schema validates values, but does not prune or default
// objects. A schema is structural if upstream's parser of structural schemas accepts it. SCH-024, SCH-025
func TestNonStructuralSchema(t *testing.T) {
	for _, below := range []string{
		`{}`, `{"id":"a"}`, `{"id":""}`, `{"$ref":"#/definitions/a"}`, `{"patternProperties":{"a":{}}}`,
		`{"patternProperties":{}}`, `{"definitions":{"a":{"type":"string"}}}`,
		`{"dependencies":{"a":["b"]}}`, `{"additionalItems":false}`, `{"items":[{"type":"string"}]}`,
		`{"items":{"type":"string"}}`, `{"x-kubernetes-preserve-unknown-fields":false}`,
		`{"x-kubernetes-preserve-unknown-fields":true}`, `{"not":{"id":"a"}}`,
		`{"anyOf":[{},{"properties":{"a":{"$ref":"b"}}}]}`,
		`{"additionalProperties":{"additionalProperties":{"id":"a"}}}`,
		`{"additionalProperties":true}`, `{"$schema":"x"}`,
	} {
		js := []byte(`{"properties":{"spec":{"type":"object","properties":{"a":` + below +
			`,"set":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}}}}}`)
		var props apiextensionsv1.JSONSchemaProps
		var internal apiextensions.JSONSchemaProps
		if err := json.Unmarshal(js, &props); err != nil {
			t.Fatal(err)
		}
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&props, &internal,
			nil); err != nil {
			t.Fatal(err)
		}
		_, refused := structuralschema.NewStructural(&internal)
		s, err := Compile(js, true)
		if err != nil {
			t.Fatal(err)
		}
		tree := object.Tree{"spec": object.Tree{"set": []any{"x", "x"}, "more": nil}}
		before := object.Copy(tree)
		unknown, wrong := s.Normalize(tree)
		if len(unknown) > 0 || wrong != nil || !object.Equal(tree, before) {
			t.Errorf("%s: unknown fields %q, error %v, result %v; want no pruning", below, unknown, wrong, tree)
		}
		errs := s.Validate(t.Context(), tree, nil, nil)
		isDuplicate := func(e *field.Error) bool { return e.Type == field.ErrorTypeDuplicate }
		if twice := slices.ContainsFunc(errs, isDuplicate); twice != (refused == nil) {
			t.Errorf("%s: upstream error %v, list errors here %v", below, refused, twice)
		}
	}
}
