package openapi

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/util/proto"
	"k8s.io/kube-openapi/pkg/validation/spec"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// eachObject calls f with every JSON object in v.
func eachObject(v any, f func(map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		f(v)
		for _, inner := range v {
			eachObject(inner, f)
		}
	case []any:
		for _, inner := range v {
			eachObject(inner, f)
		}
	}
}

// checkReferencesAndIDs checks two properties that generators of code and documentation rely on: the target of each
// reference exists, and operation IDs are unique.
func checkReferencesAndIDs(t *testing.T, doc map[string]any) {
	t.Helper()
	targets, ids := map[string]bool{}, map[string]bool{}
	addTargets := func(prefix string, members any) {
		m, _ := members.(map[string]any)
		for name := range m {
			targets[prefix+name] = true
		}
	}
	addTargets("#/definitions/", doc["definitions"])
	addTargets("#/parameters/", doc["parameters"])
	if c, ok := doc["components"].(map[string]any); ok {
		addTargets("#/components/schemas/", c["schemas"])
	}
	eachObject(doc, func(m map[string]any) {
		if ref, ok := m["$ref"].(string); ok && !targets[ref] {
			t.Errorf("the target of the reference %s does not exist", ref)
		}
		id, ok := m["operationId"].(string)
		if ok && ids[id] {
			t.Errorf("two operations have the ID %s", id)
		}
		ids[id] = true
	})
}

// parseAsClients parses a document with the libraries that clients use.
func parseAsClients(t *testing.T, e edition, text []byte) {
	t.Helper()
	if e == v3 {
		if err := json.Unmarshal(text, &spec3.OpenAPI{}); err != nil {
			t.Error(err)
		}
		doc, err := openapi_v3.ParseDocument(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := proto.NewOpenAPIV3Data(doc); err != nil {
			t.Error(err)
		}
		return
	}
	if err := json.Unmarshal(text, &spec.Swagger{}); err != nil {
		t.Error(err)
	}
	doc, err := openapi_v2.ParseDocument(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := proto.NewOpenAPIData(doc); err != nil {
		t.Error(err)
	}
}

// TestClientsParseDocuments checks that clients can parse the documents. Definitions of v2 have no nullable, and no
// other keyword that an old kubectl does not support (OAS-008, OAS-012).
func TestClientsParseDocuments(t *testing.T) {
	var all []*resource.Version
	for _, d := range kinds.Definitions(kinds.Config{}) {
		all = append(all, d.Versions...)
	}
	for _, file := range sampled(t, 200) {
		manifest, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, d := readCRD(t, manifest)
		all = append(all, d.Versions...)
	}
	for _, e := range []edition{v2, v3} {
		t.Run(fmt.Sprintf("v%d", e), func(t *testing.T) {
			d, err := newDocument(e, all)
			if err != nil {
				t.Fatal(err)
			}
			text := d.text()
			doc := tree(t, text)
			checkReferencesAndIDs(t, doc)
			parseAsClients(t, e, text)
			if e == v3 {
				return
			}
			eachObject(doc["definitions"], func(m map[string]any) {
				for _, key := range []string{"nullable", "allOf", "anyOf", "oneOf", "not"} {
					if _, isSchema := m[key].(map[string]any); m[key] != nil && !isSchema {
						t.Errorf("a definition of v2 has the keyword %s", key)
					}
				}
			})
		})
	}
}
