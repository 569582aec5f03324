package schema

import (
	"encoding/json"
	"testing"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"

	"github.com/trellis-k8s/trellis/internal/fixture/realcrds"
	"github.com/trellis-k8s/trellis/internal/object"
)

// TestRealSchemas checks that the schemas of real CRDs keep all keywords, and that the fast check accepts every
// schema that upstream's check accepts. SCH-001
func TestRealSchemas(t *testing.T) {
	for name, crd := range realcrds.All(t) {
		for _, v := range crd.Spec.Versions {
			if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
				continue
			}
			js, err := json.Marshal(v.Schema.OpenAPIV3Schema)
			if err != nil {
				t.Fatal(err)
			}
			s, err := Parse(js, false)
			if err != nil {
				t.Fatal(err)
			}
			want, _, err := object.DecodeJSON(js)
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := object.DecodeJSON(s.Root.AppendJSON(nil))
			if err != nil || !object.Equal(got, want) {
				t.Errorf("%s %s: the schema has changed: %v", name, v.Name, err)
			}
			errs := structuralschema.ValidateStructural(nil, realcrds.Structural(t, v.Schema.OpenAPIV3Schema))
			if fast := s.Root.isStructuralRoot(); fast != (len(errs) == 0) {
				t.Errorf("%s %s: structural: %t, upstream's errors: %v", name, v.Name, fast, errs)
			}
		}
	}
}
