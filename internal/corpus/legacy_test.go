package corpus_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/testserver"
)

const legacyPath = "/apis/apiextensions.k8s.io/v1beta1/customresourcedefinitions"

// TestLegacyCorpus checks that real v1beta1 CRDs are accepted by create and apply, are served and explained, and keep
// unknown fields of their objects (CRD-034 CNV-064 CNV-066 SCH-002 SCH-024 OAS-005).
func TestLegacyCorpus(t *testing.T) {
	requireCorpus(t)
	server := testserver.Start(t)
	c := newClient(t, server.Config)
	kinds, preserving := map[string]served{}, 0
	for _, crd := range read(t, "legacy-v1beta1", "") {
		if strings.Contains(string(crd.yaml), "{{") { // the labels are Helm templates
			delete(nested[map[string]any](crd.tree, "metadata"), "labels")
			crd.yaml, _ = yaml.Marshal(crd.tree)
		}
		created, err := c.do("POST", legacyPath, asYAML, crd.yaml)
		if err != nil || !established(created) {
			t.Errorf("%s: %v", crd.path, err)
			continue
		}
		applied, err := c.do("PATCH", legacyPath+"/"+crd.name()+"?fieldManager=corpus&force=true", asApply, crd.yaml)
		if err != nil {
			t.Errorf("%s: %v", crd.path, err)
			continue
		}
		var before, after, v1 struct{ Spec map[string]any }
		body, err := c.do("GET", crdPath+crd.name(), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		for from, into := range map[string]*struct{ Spec map[string]any }{string(created): &before,
			string(applied): &after, string(body): &v1} {
			if err := json.Unmarshal([]byte(from), into); err != nil {
				t.Fatal(err)
			}
		}
		if fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("%s: got a change by applying the same manifest:\n%v\nwant\n%v", crd.path, after, before)
		}
		for _, v := range nested[[]any](v1.Spec, "versions") {
			if after.Spec["validation"] != nil && nested[map[string]any](v, "schema") == nil {
				t.Errorf("%s: got a version without the schema of all versions: %v", crd.path, v)
			}
			s := served{nested[string](v1.Spec, "group"), nested[string](v, "name"),
				nested[string](v1.Spec, "names", "plural"),
				nested[string](v1.Spec, "names", "kind"), nested[string](v1.Spec, "scope") == "Namespaced", crd}
			kinds[s.apiVersion()+" "+s.kind] = s
			if storesUnknownField(t, c, s, nested[bool](v1.Spec, "preserveUnknownFields")) {
				preserving++
			}
		}
	}
	explainAll(t, server, kinds)
	if len(kinds) < 12 || preserving < 8 {
		t.Errorf("got %d kinds, %d of them with an object that has an unknown field, want 12 and 8", len(kinds),
			preserving)
	}
}

// storesUnknownField creates an object with a field that is not in the schema, and checks whether the field is stored.
// The field must be stored if preserves is set. The result is true if preserves is set and the object was created.
// Objects that lack required fields are not created.
func storesUnknownField(t *testing.T, c *client, s served, preserves bool) bool {
	t.Helper()
	body := fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"name":"unknown"},"unknown":{"a":1}}`,
		s.apiVersion(), s.kind)
	path := s.collection("default")
	out, err := c.do("POST", path, "application/json", body)
	if err != nil {
		if !strings.Contains(err.Error(), "Required value") && !strings.Contains(err.Error(), "AlreadyExists") {
			t.Errorf("%s: %v", path, err)
		}
		return false
	}
	if has := strings.Contains(string(out), `"unknown":{"a":1}`); has != preserves {
		t.Errorf("%s: got unknown field stored %t, want %t: %s", path, has, preserves, out)
	}
	return preserves
}
