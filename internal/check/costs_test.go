package check

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnboundedCost checks that an unbounded cost is reported as such, and not as the maximum number.
// VAL-150
func TestUnboundedCost(t *testing.T) {
	file := filepath.Join(t.TempDir(), "crd.yaml")
	const schema = "{type: object, properties: {a: {type: array, items: {type: string}, x-kubernetes-validations: " +
		"[{rule: 'self.all(w, self.all(x, self.all(y, self.all(z, w + x == y + z))))'}]}}}"
	manifest := "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: " +
		"foos.example.com}, spec: {group: example.com, scope: Cluster, names: {plural: foos, kind: Foo}, " +
		"versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: " + schema + "}}]}}"
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := Manifests(t.Context(), []string{file})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	js, err := json.Marshal(r.Rules)
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{text.String(), string(js)} {
		if strings.Contains(out, "18446744073709551615") || !strings.Contains(out, "unbounded") {
			t.Error(out)
		}
	}
}
