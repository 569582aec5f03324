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

// CRD-034 CNV-064 CNV-066 SCH-002 SCH-024 OAS-005: CRDs that projects had in the legacy form are accepted, by a create and by
// an apply, are served and explained, and keep what their schemas do not know.
func TestLegacyCorpus(t *testing.T) {
	requireCorpus(t)
	server := testserver.Start(t)
	c := newClient(t, server.Config)
	kinds, kept := map[string]served{}, 0
	for _, crd := range read(t, "legacy-v1beta1", "") {
		if strings.Contains(string(crd.yaml), "{{") { // labels that are templates of Helm
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
		for from, into := range map[string]*struct{ Spec map[string]any }{string(created): &before, string(applied): &after, string(body): &v1} {
			if err := json.Unmarshal([]byte(from), into); err != nil {
				t.Fatal(err)
			}
		}
		if fmt.Sprint(before) != fmt.Sprint(after) {
			t.Errorf("%s: an apply of the same changed it:\n%v\n%v", crd.path, before, after)
		}
		for _, v := range nested[[]any](v1.Spec, "versions") {
			if after.Spec["validation"] != nil && nested[map[string]any](v, "schema") == nil {
				t.Errorf("%s: a version is without the schema for all: %v", crd.path, v)
			}
			s := served{nested[string](v1.Spec, "group"), nested[string](v, "name"), nested[string](v1.Spec, "names", "plural"),
				nested[string](v1.Spec, "names", "kind"), nested[string](v1.Spec, "scope") == "Namespaced", crd}
			kinds[s.apiVersion()+" "+s.kind] = s
			if strange(t, c, s, nested[bool](v1.Spec, "preserveUnknownFields")) {
				kept++
			}
		}
	}
	explainAll(t, server, kinds)
	if len(kinds) < 12 || kept < 8 {
		t.Errorf("%d kinds, %d of them with an object that has an unknown field", len(kinds), kept)
	}
}

// strange creates an object with a field that no schema knows, unless the schema wants more of it.
func strange(t *testing.T, c *client, s served, preserves bool) bool {
	t.Helper()
	body := fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"name":"strange"},"strange":{"a":1}}`, s.apiVersion(), s.kind)
	path := s.collection("default")
	out, err := c.do("POST", path, "application/json", body)
	if err != nil {
		if !strings.Contains(err.Error(), "Required value") && !strings.Contains(err.Error(), "AlreadyExists") {
			t.Errorf("%s: %v", path, err)
		}
		return false
	}
	if has := strings.Contains(string(out), `"strange":{"a":1}`); has != preserves {
		t.Errorf("%s: preserveUnknownFields is %t: %s", path, preserves, out)
	}
	return preserves
}
