package check

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
)

// forbiddenHead is the YAML of a CRD that ends before the schema of the property x.
const forbiddenHead = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          x:
`

const (
	forbiddenIndent = "            " // of the schema of x
	pruned          = "warning Pruned: the field is not in the schema and is dropped"
)

// forbiddenFindings maps a forbidden keyword to the severity, the reason and the message of its finding. If only some
// values of a keyword are forbidden, a suffix such as "-true" describes them.
var forbiddenFindings = map[string]string{
	"$ref":                       "error Forbidden: Forbidden: $ref is not supported",
	"additionalProperties-false": "error Forbidden: Forbidden: additionalProperties cannot be set to false",
	"additionalProperties-and-properties": "error Forbidden: Forbidden: additionalProperties and properties are " +
		"mutual exclusive",
	"definitions":       "error Forbidden: Forbidden: definitions is not supported",
	"dependencies":      "error Forbidden: Forbidden: dependencies is not supported",
	"deprecated":        pruned,
	"discriminator":     pruned,
	"id":                "error Forbidden: Forbidden: id is not supported",
	"patternProperties": "error Forbidden: Forbidden: patternProperties is not supported",
	"readOnly":          pruned,
	"uniqueItems-true": "error Forbidden: Forbidden: uniqueItems cannot be set to true since the runtime complexity " +
		"becomes quadratic",
	"writeOnly": pruned,
	"xml":       pruned,
}

// TestForbiddenFields checks that each forbidden keyword of a schema is reported once, at its position and with its
// message. The examples of the specification are additional cases.
// VAL-002 VAL-003 VAL-004 VAL-005 VAL-006 VAL-007 VAL-008 VAL-009 VAL-010 VAL-011 VAL-012 VAL-013 VAL-014 VAL-017
func TestForbiddenFields(t *testing.T) {
	tests := []struct{ name, schema string }{
		{"$ref", "type: string\n$ref: '#/definitions/name'"},
		{"additionalProperties-false", "type: object\nadditionalProperties: false"},
		{"additionalProperties-and-properties",
			"type: object\nproperties:\n  a: {type: integer}\nadditionalProperties: {type: integer}"},
		{"definitions", "type: object\ndescription: d\ndefinitions:\n  name: {type: string}"},
		{"dependencies", "dependencies:\n  a: [b, c]\ntype: object"},
		{"deprecated", "type: integer\ndeprecated: false"},
		{"discriminator", "type: object\ndiscriminator: {propertyName: type}"},
		{"id", "type: string\nid: https://example.com/x"},
		{"patternProperties", "type: object\npatternProperties:\n  ^b: {type: string}"},
		{"readOnly", "readOnly: true\ntype: string"},
		{"uniqueItems-true", "type: array\nitems: {type: integer}\nuniqueItems: true"},
		{"writeOnly", "type: string\nformat: password\nwriteOnly: true"},
		{"xml", "xml: {attribute: true}\ntype: string"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { checkForbiddenField(t, test.name, test.schema) })
	}
	if len(tests) != len(forbiddenFindings) {
		t.Errorf("got %d cases, want one for each of the %d findings", len(tests), len(forbiddenFindings))
	}

	t.Run("specification", func(t *testing.T) {
		data, err := os.ReadFile(outside.Path("spec/examples/03-validation/forbidden-fields.yaml"))
		if err != nil {
			t.Skipf("the examples of the specification are not beside the module: %v", err)
		}
		var items []struct {
			Name   string         `json:"name"`
			Schema map[string]any `json:"schema"`
		}
		if err := yaml.Unmarshal(data, &items); err != nil || len(items) == 0 {
			t.Fatalf("got %d examples, error %v", len(items), err)
		}
		for _, item := range items {
			t.Run(item.Name, func(t *testing.T) {
				text, err := yaml.Marshal(item.Schema)
				if err != nil {
					t.Fatal(err)
				}
				checkForbiddenField(t, item.Name, string(text))
			})
		}
	})
}

// checkForbiddenField checks the finding for a CRD in which the property x has the given schema. The parameter name
// is a key of forbiddenFindings.
func checkForbiddenField(t *testing.T, name, schema string) {
	t.Helper()
	manifest := forbiddenHead + forbiddenIndent +
		strings.ReplaceAll(strings.TrimSpace(schema), "\n", "\n"+forbiddenIndent) + "\n"
	file := filepath.Join(t.TempDir(), "crd.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Manifests(t.Context(), []string{file})
	if err != nil {
		t.Fatal(err)
	}
	keyword, _, _ := strings.Cut(name, "-")
	before, _, found := strings.Cut(manifest, "\n"+forbiddenIndent+keyword+":")
	if !found || forbiddenFindings[name] == "" {
		t.Fatalf("the case has no keyword %q or no expected finding", keyword)
	}
	want := []string{fmt.Sprintf("%d:%d %s", strings.Count(before, "\n")+2, len(forbiddenIndent)+1,
		forbiddenFindings[name])}
	var got []string
	for _, f := range r.Findings {
		if f.Severity != Note {
			got = append(got, fmt.Sprintf("%d:%d %s %s: %s", f.Line, f.Column, f.Severity, f.Reason, f.Message))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got findings %q, want %q in\n%s", got, want, manifest)
	}
}
