package openapi

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/fixture/outside"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// readCRD decodes the manifest of a CRD, marks it as established, and returns its definition.
func readCRD(t testing.TB, manifest []byte) (*apiextensionsv1.CustomResourceDefinition, *resource.Definition) {
	t.Helper()
	crd, r := storedCRD(t, manifest)
	d := definition.FromCRD(r)
	if d == nil {
		t.Fatalf("FromCRD returned no definition for %s", crd.Name)
	}
	return crd, d
}

// storedCRD decodes the manifest of a CRD, and returns it with the stored record of the established CRD.
func storedCRD(t testing.TB, manifest []byte) (*apiextensionsv1.CustomResourceDefinition, *storage.Record) {
	t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(manifest, crd); err != nil {
		t.Fatal(err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(crd)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	crd.Status.AcceptedNames = crd.Spec.Names
	crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established,
		Status: apiextensionsv1.ConditionTrue}}
	text, err := json.Marshal(crd)
	if err != nil {
		t.Fatal(err)
	}
	tree := object.Tree{}
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	return crd, &storage.Record{Key: definition.CRDPrefix + crd.Name, Value: object.Pack(tree, 0).JSON(), Modified: 1}
}

// corpus returns the files with CRDs to publish: those in testdata, and the corpus of real CRDs if it exists.
func corpus(t testing.TB) (all []string) {
	t.Helper()
	for _, pattern := range []string{"testdata/*.yaml", outside.Path("corpus/crds/*/*.yaml")} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	return all
}

// sampled returns the files in testdata and every n-th file of the corpus.
func sampled(t testing.TB, n int) (some []string) {
	t.Helper()
	for i, file := range corpus(t) {
		if i%n == 0 || strings.HasPrefix(file, "testdata/") {
			some = append(some, file)
		}
	}
	return some
}

// tree decodes a JSON object.
func tree(t testing.TB, text []byte) map[string]any {
	t.Helper()
	out := map[string]any{}
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatalf("cannot decode JSON: %v", err)
	}
	return out
}

// diff calls report for each difference between two JSON values.
func diff(path string, got, want any, report func(string)) {
	g, ok1 := got.(map[string]any)
	w, ok2 := want.(map[string]any)
	if ok1 && ok2 {
		for k := range g {
			if _, ok := w[k]; !ok {
				report(fmt.Sprintf("%s.%s: got %.300v, want no value", path, k, g[k]))
			}
		}
		for k := range w {
			if _, ok := g[k]; !ok {
				report(fmt.Sprintf("%s.%s: got no value, want %.300v", path, k, w[k]))
				continue
			}
			diff(path+"."+k, g[k], w[k], report)
		}
		return
	}
	gl, ok1 := got.([]any)
	wl, ok2 := want.([]any)
	if ok1 && ok2 && len(gl) == len(wl) {
		for i := range gl {
			diff(fmt.Sprintf("%s[%d]", path, i), gl[i], wl[i], report)
		}
		return
	}
	if !reflect.DeepEqual(got, want) {
		report(fmt.Sprintf("%s: got %.300v, want %.300v", path, got, want))
	}
}

// mustEqual fails the test if two JSON values differ. It reports at most 10 differences.
func mustEqual(t *testing.T, name string, got, want any) {
	t.Helper()
	n := 0
	diff(name, got, want, func(s string) {
		if n++; n <= 10 {
			t.Error(s)
		}
	})
	if n > 10 {
		t.Fatalf("%d more differences", n-10)
	}
}

// trellisDocument returns Trellis' document of one version.
func trellisDocument(t testing.TB, e edition, v *resource.Version) map[string]any {
	t.Helper()
	d, err := newDocument(e, []*resource.Version{v})
	if err != nil {
		t.Fatal(err)
	}
	return tree(t, d.text())
}

// upstreamDocument returns upstream's document of one version of a CRD.
func upstreamDocument(
	t testing.TB, e edition, crd *apiextensionsv1.CustomResourceDefinition, version string,
) map[string]any {
	t.Helper()
	var doc any
	var err error
	opts := builder.Options{V2: e == v2, IncludeSelectableFields: true}
	if e == v2 {
		doc, err = builder.BuildOpenAPIV2(crd, version, opts)
	} else {
		doc, err = builder.BuildOpenAPIV3(crd, version, opts)
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return tree(t, text)
}

// pruneDefaults removes all defaults from v, as upstream does for the models of v2. names specifies whether the keys of
// v are names of properties.
func pruneDefaults(v any, names bool) {
	switch v := v.(type) {
	case map[string]any:
		if !names {
			delete(v, "default")
		}
		for k, inner := range v {
			pruneDefaults(inner, k == "properties" && !names)
		}
	case []any:
		for _, inner := range v {
			pruneDefaults(inner, false)
		}
	}
}

// compareWithUpstream compares the documents of one version with upstream's, for OpenAPI v2 and v3.
func compareWithUpstream(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, v *resource.Version) {
	t.Helper()
	for _, e := range []edition{v2, v3} {
		got, want := trellisDocument(t, e, v), upstreamDocument(t, e, crd, v.GroupVersion.Version)
		for _, d := range []map[string]any{got, want} {
			delete(d, "info") // the server's document has a different info
			delete(d, "securityDefinitions")
			delete(d, "security")
		}
		if e == v2 {
			pruneDefaults(want["definitions"], true)
		}
		mustEqual(t, fmt.Sprintf("%s v%d", v.GroupVersionKind(), e), got, want)
	}
}

// TestCorpusIsPublishedAsUpstream compares the documents of CRDs of the corpus with upstream's (OAS-001, OAS-002,
// OAS-003, OAS-009, OAS-010, OAS-011, OAS-013, OAS-014, OAS-017, OAS-018, OAS-019, OAS-020).
func TestCorpusIsPublishedAsUpstream(t *testing.T) {
	n := 16
	if os.Getenv("TRELLIS_CORPUS") == "all" { // all files take a minute
		n = 1
	}
	for _, file := range sampled(t, n) {
		manifest, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		crd, d := readCRD(t, manifest)
		for _, v := range d.Versions {
			compareWithUpstream(t, crd, v)
			if t.Failed() {
				t.Fatalf("the documents of %s differ", file)
			}
		}
	}
}
