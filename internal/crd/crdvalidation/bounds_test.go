package crdvalidation

import (
	"fmt"
	"strings"
	"testing"

	upstream "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
)

// TestSlowRules checks that slow rules are rejected by name or validated with a cost that their length limits.
// VAL-150, VAL-152
func TestSlowRules(t *testing.T) {
	spec := func(schema string) CRD {
		return withSchema(t, "{type: object, properties: {spec: "+schema+"}}")
	}
	rule := func(text string) CRD {
		return spec(fmt.Sprintf("{type: integer, x-kubernetes-validations: [{rule: %q}]}", text))
	}
	for _, c := range []struct {
		name string
		crd  CRD
		want string
	}{
		{"a long rule", rule("self == 1" + strings.Repeat(" || self == 1", 20_000)),
			"expression code point size exceeds limit"},
		{"a deep rule", rule(strings.Repeat("(", 400) + "self == 1" + strings.Repeat(")", 400)),
			"expression recursion limit exceeded"},
		{"nested loops", rule("[1,2,3].all(a, " + strings.Repeat("[1,2,3,4,5,6,7,8,9].all(a, ", 12) + "a > 0" +
			strings.Repeat(")", 13)), "estimated rule cost exceeds budget by factor of more than 100x"},
		{"doubling strings", rule("'" + strings.Repeat("x", 100) + "'" +
			strings.Repeat(".replace('x', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx')", 12) + " != ''"),
			"estimated rule cost exceeds budget"},
		{"lists of lists", spec("{type: array, items: {type: array, items: {type: array, items: {type: string, " +
			"x-kubernetes-validations: [{rule: self.contains('x')}]}}}}"), "estimated rule cost exceeds budget"},
	} {
		errs := Create(c.crd)
		if len(errs) == 0 || !strings.Contains(errs[0].Detail, c.want) {
			t.Errorf("%s: %.300v", c.name, errs)
		}
		compare(t, c.name, errs, upstream.ValidateCustomResourceDefinition(t.Context(), c.crd.Upstream()))
	}
	same := strings.TrimSuffix(strings.Repeat("{rule: self > 0}, ", 5_000), ", ")
	if errs := Create(spec("{type: integer, x-kubernetes-validations: [" + same + "]}")); len(errs) > 0 {
		t.Errorf("5,000 equal rules: got errors %.300v", errs)
	}
}

// TestSelectableFieldsWithoutSchema checks that selectable fields without a schema are an error. Upstream panics
// for them.
// CRD-036
func TestSelectableFieldsWithoutSchema(t *testing.T) {
	crd, err := prepared(mutated(t, func(crd map[string]any) {
		version := crd["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
		version["schema"] = map[string]any{}
		crd["spec"].(map[string]any)["versions"] = []any{version}
	}))
	if err != nil {
		t.Fatal(err)
	}
	want := `spec.selectableFields[0].jsonPath: Invalid value: ".spec.replicas": is an invalid path: does not ` +
		`refer to a valid field`
	if errs := Create(crd); !strings.Contains(fmt.Sprint(errs), want) ||
		!strings.Contains(fmt.Sprint(errs), "openAPIV3Schema: Required") {
		t.Errorf("%v", errs)
	}
}
