package check

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestForbiddenFields checks that each forbidden keyword of a schema is reported at its position.
// VAL-002 VAL-003 VAL-004 VAL-005 VAL-006 VAL-007 VAL-008 VAL-009 VAL-010 VAL-011 VAL-012 VAL-013 VAL-014 VAL-017
func TestForbiddenFields(t *testing.T) {
	data, err := os.ReadFile("../../../shared/spec/examples/03-validation/forbidden-fields.yaml")
	if err != nil {
		t.Skipf("the examples of the specification are not beside the module: %v", err)
	}
	var items []struct {
		Name   string         `json:"name"`
		Schema map[string]any `json:"schema"`
	}
	if err := yaml.Unmarshal(data, &items); err != nil || len(items) == 0 {
		t.Fatal(len(items), err)
	}
	const head = `apiVersion: apiextensions.k8s.io/v1
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
	for _, item := range items {
		t.Run(item.Name, func(t *testing.T) {
			keyword, _, _ := strings.Cut(item.Name, "-")
			text, err := yaml.Marshal(item.Schema)
			if err != nil {
				t.Fatal(err)
			}
			manifest := head + "            " + strings.ReplaceAll(strings.TrimSpace(string(text)), "\n",
				"\n            ") + "\n"
			file := filepath.Join(t.TempDir(), "crd.yaml")
			if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := Manifests(t.Context(), []string{file})
			if err != nil {
				t.Fatal(err)
			}
			line := 1 + strings.Count(manifest[:strings.Index(manifest, "            "+keyword+":")], "\n")
			want, found := fmt.Sprintf("%d:%d", line, 13), ""
			for _, f := range r.Findings {
				if f.Severity != Note {
					found += fmt.Sprintf("%d:%d ", f.Line, f.Column)
				}
			}
			if !strings.Contains(found, want+" ") {
				t.Errorf("found at %q, want %s: %v\n%s", found, want, r.Findings, manifest)
			}
		})
	}
}
