package crdvalidation

import (
	"os"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	upstream "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"sigs.k8s.io/yaml"
)

// TestRuleVectorsCompile creates a CRD for each rule of internal/crd/cel/testdata/rules.yaml. It checks that the CRD
// is accepted if the file specifies no compilation error for the rule, and is rejected with that error otherwise.
// VAL-048 VAL-054 VAL-055 VAL-056 VAL-057
// VAL-058 VAL-059 VAL-060 VAL-061 VAL-063 VAL-064 VAL-065 VAL-066 VAL-073 VAL-077 VAL-078 VAL-079 VAL-080 VAL-081
// VAL-082 VAL-083.
func TestRuleVectorsCompile(t *testing.T) {
	data, err := os.ReadFile("../../crd/cel/testdata/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		ID, About       string
		Schema          map[string]any
		Root            bool
		Rule, Message   string
		OptionalOldSelf *bool
		Invalid         string
	}
	if err := yaml.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		v.Schema["x-kubernetes-validations"] = []any{apiextensionsv1.ValidationRule{Rule: v.Rule, Message: v.Message,
			OptionalOldSelf: v.OptionalOldSelf}}
		schema, path := any(v.Schema), "spec.validation.openAPIV3Schema.x-kubernetes-validations[0]"
		if !v.Root {
			schema, path = map[string]any{"type": "object", "properties": map[string]any{"spec": schema}}, rulePath
		}
		js, err := yaml.Marshal(schema)
		if err != nil {
			t.Fatal(err)
		}
		crd := withSchema(t, string(js))
		errs := Create(crd)
		switch {
		case v.Invalid == "" && len(errs) > 0:
			t.Errorf("%s %s: %v", v.ID, v.About, errs)
		case v.Invalid != "" && (len(errs) != 1 || errs[0].Field != path+".rule" ||
			!strings.HasPrefix(errs[0].Detail, v.Invalid)):
			t.Errorf("%s %s: %v\nwant %s.rule: %s", v.ID, v.About, errs, path, v.Invalid)
		}
		if v.ID != "VAL-058" { // upstream overestimates the cost of VAL-160
			compare(t, v.ID, errs, upstream.ValidateCustomResourceDefinition(t.Context(), crd.Upstream()))
		}
	}
}
