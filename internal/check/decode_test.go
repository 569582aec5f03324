package check

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPositions checks the positions of findings for values of a wrong type and for words that YAML decodes as
// booleans.
func TestPositions(t *testing.T) {
	const crd = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: things, singular: thing, kind: Thing}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {
      a: {type: string, maxLength: 1},
      b: {type: string}}}}}
`
	for _, c := range []struct{ text, want string }{
		{"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: [a]\n", "4:3 BadRequest metadata.name"},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: [a]\n", "3:1 BadRequest metadata"},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n  labels:\n    a: x\n    b: 5\n",
			"7:5 BadRequest metadata.labels"},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  a: on\n", "5:3 BadRequest data"},
		{"apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  ports:\n  - port: 1\n  - port: [1]\n",
			"7:5 BadRequest spec.ports.port"},
		{strings.Replace(crd, "scope: Namespaced",
			"scope: Namespaced\n  conversion:\n    strategy: Webhook\n    webhook:\n      clientConfig:\n        "+
				"caBundle: not base64!", 1),
			"12:9 BadRequest spec.conversion.webhook.clientConfig.caBundle"},
		{"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: a\n  - name: b\n    " +
			"resources: {limits: {cpu: lots}}\n", "8:26 BadRequest spec.containers[1].resources.limits[cpu]"},
		{strings.Replace(crd, "b: {type: string", "b: {maxLength: x", 1),
			"12:11 BadRequest spec.versions.schema.openAPIV3Schema.properties.maxLength"},
		{strings.Replace(crd, "maxLength: 1", "maxLength: [1]", 1),
			"11:25 BadRequest spec.versions.schema.openAPIV3Schema.properties.maxLength"},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  off: a\n  'yes': b\n  nope: c\n",
			"5:3 Boolean "},
		{strings.Replace(crd, "b: {type: string", "y: {type: string, enum: [No, 'on', b]", 1),
			"12:7 Boolean  12:32 Boolean "},
		{strings.Replace(crd, "b: {type: string", "n: {type: wrong", 1),
			"12:7 Boolean  12:11 NotSupported spec.validation.openAPIV3Schema.properties[false].type"},
		{strings.Replace(crd, "b: {type: string", "'y': {type: string", 1), ""},
	} {
		file := filepath.Join(t.TempDir(), "f.yaml")
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := Manifests(t.Context(), []string{file})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range r.Findings {
			got = append(got, fmt.Sprintf("%d:%d %s %s", f.Line, f.Column, f.Reason, f.Path))
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%q, want %q: %v\n%s", got, c.want, r.Findings, c.text)
		}
	}
}
