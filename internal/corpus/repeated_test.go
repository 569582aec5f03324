package corpus_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/testserver"
)

// rewrite is a write of a CRD that repeats the stored content. body returns the request body.
type rewrite struct {
	name, method, query, contentType string
	body                             func(manifest, stored []byte) ([]byte, error)
}

const (
	asJSON         = "application/json"
	asJSONPatch    = "application/json-patch+json"
	asStrategic    = "application/strategic-merge-patch+json"
	asManager      = "?fieldManager=corpus"
	asOtherManager = "?fieldManager=other"
)

var rewrites = []rewrite{
	{"the stored CRD, by PUT", "PUT", asOtherManager, asJSON, storedCRD},
	{"the stored CRD as Go writes it, by PUT", "PUT", asOtherManager, asJSON,
		func(_, stored []byte) ([]byte, error) { return throughGoType(stored) }},
	{"the stored CRD, by PUT in protobuf", "PUT", asOtherManager, "application/vnd.kubernetes.protobuf",
		func(_, stored []byte) ([]byte, error) {
			var typed apiextensionsv1.CustomResourceDefinition
			if err := json.Unmarshal(stored, &typed); err != nil {
				return nil, err
			}
			var out bytes.Buffer
			err := protobuf.NewSerializer(nil, nil).Encode(&typed, &out)
			return out.Bytes(), err
		}},
	{"the stored CRD, by a merge patch", "PATCH", asOtherManager, asMerge, storedCRD},
	{"the stored CRD, by a strategic merge patch", "PATCH", asOtherManager, asStrategic, storedCRD},
	{"the stored spec, by a JSON patch", "PATCH", asOtherManager, asJSONPatch, func(_, stored []byte) ([]byte, error) {
		spec := member(stored, "spec")
		return json.Marshal([]any{
			map[string]any{"op": "test", "path": "/spec", "value": spec},
			map[string]any{"op": "replace", "path": "/spec", "value": spec},
		})
	}},
	{"the manifest, by an apply", "PATCH", asManager, asApply,
		func(manifest, _ []byte) ([]byte, error) { return manifest, nil }},
	{"the manifest, by PUT", "PUT", asOtherManager, asJSON, withStoredVersion},
	{"the manifest as Go writes it, by PUT", "PUT", asOtherManager, asJSON,
		func(manifest, stored []byte) ([]byte, error) {
			written, err := throughGoType(manifest)
			if err != nil {
				return nil, err
			}
			return withStoredVersion(written, stored)
		}},
}

func storedCRD(_, stored []byte) ([]byte, error) { return stored, nil }

// throughGoType returns a CRD as JSON after decoding it into its Go type, like a Go client.
func throughGoType(crd []byte) ([]byte, error) {
	var typed apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(crd, &typed); err != nil {
		return nil, err
	}
	return json.Marshal(&typed)
}

// withStoredVersion returns a manifest with the stored resourceVersion, for a PUT.
func withStoredVersion(manifest, stored []byte) ([]byte, error) {
	var t map[string]any
	if err := yaml.Unmarshal(manifest, &t); err != nil {
		return nil, err
	}
	t["metadata"].(map[string]any)["resourceVersion"] = nested[string](member(stored, "metadata"), "resourceVersion")
	return json.Marshal(t)
}

func member(js []byte, name string) any {
	var t map[string]any
	if err := json.Unmarshal(js, &t); err != nil {
		return nil
	}
	return t[name]
}

// testRewrites sends every rewrite of a stored CRD twice and checks that the CRD does not change by a byte.
// hasEmptyValues is set if the manifest contains empty values. The first write may then change the resourceVersion and
// managedFields.
func testRewrites(t *testing.T, c *client, label, path string, manifest []byte, hasEmptyValues bool) {
	t.Helper()
	for _, w := range rewrites {
		before, err := c.do("GET", path, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		for again := range 2 {
			body, err := w.body(manifest, before)
			if err != nil {
				t.Fatal(err)
			}
			after, err := c.do(w.method, path+w.query, w.contentType, body)
			if err != nil {
				t.Errorf("%s: %s: %.500v", label, w.name, err)
				return
			}
			if strict := !hasEmptyValues || again > 0; strict && !bytes.Equal(before, after) ||
				generation(before) != generation(after) {
				t.Errorf("%s: %s: got\n%.4000s\nwant\n%.4000s", label, w.name, after, before)
				return
			}
			before = after
		}
	}
}

func generation(crd []byte) float64 { return nested[float64](member(crd, "metadata"), "generation") }

// TestRepeatedWritesOfCRDs checks that writing a real CRD again, as stored or as in its manifest, changes nothing.
// TRELLIS_CORPUS=all selects all CRDs (CRD-042).
func TestRepeatedWritesOfCRDs(t *testing.T) {
	requireCorpus(t)
	c, n := newClient(t, testserver.Start(t).Config), 0
	for _, project := range projects(t, "crds") {
		for _, crd := range read(t, "crds", project) {
			if n++; n%40 != 0 && os.Getenv("TRELLIS_CORPUS") != "all" {
				continue
			}
			path := crdPath + crd.name()
			if _, err := c.do("PATCH", path+asManager, asApply, crd.yaml); err != nil {
				t.Errorf("%s: %v", crd.path, err)
				continue
			}
			testRewrites(t, c, crd.path, path, crd.yaml, false)
			remove(t, c, crd)
		}
	}
}

// emptyValues lists, for each field of a schema, values that are equivalent to a missing field. It also lists numbers
// in unusual notations.
var emptyValues = map[string][]any{
	"description":                          {nil, ""},
	"title":                                {nil, ""},
	"format":                               {nil, ""},
	"pattern":                              {nil, ""},
	"nullable":                             {nil, false},
	"uniqueItems":                          {nil, false},
	"exclusiveMinimum":                     {nil, false},
	"x-kubernetes-embedded-resource":       {nil, false},
	"x-kubernetes-int-or-string":           {nil, false},
	"x-kubernetes-preserve-unknown-fields": {nil},
	"x-kubernetes-list-type":               {nil},
	"required":                             {nil, []any{}},
	"enum":                                 {nil, []any{}},
	"allOf":                                {nil, []any{}},
	"anyOf":                                {nil, []any{}},
	"oneOf":                                {nil, []any{}},
	"not":                                  {nil},
	"items":                                {nil, []any{}},
	"properties":                           {nil, map[string]any{}},
	"patternProperties":                    {nil, map[string]any{}},
	"definitions":                          {nil, map[string]any{}},
	"additionalProperties":                 {nil},
	"x-kubernetes-list-map-keys":           {nil, []any{}},
	"x-kubernetes-validations":             {nil, []any{}},
	"default":                              {nil},
	"example":                              {nil, json.Number("1.0")},
	"maxLength":                            {nil},
	"externalDocs":                         {nil},
	"minimum":                              {nil, json.Number("0.0"), json.Number("1e2")},
	"maximum": {nil, json.Number("100.0"), json.Number("9007199254740993"),
		json.Number("1e300")},
	"multipleOf": {nil, json.Number("1.0")},
}

// addEmptyValues adds random values of emptyValues to the schema s and to the schemas below it.
func addEmptyValues(r *rand.Rand, s map[string]any) {
	keys := slices.Sorted(maps.Keys(emptyValues))
	for range r.IntN(4) {
		key := keys[r.IntN(len(keys))]
		if _, ok := s[key]; !ok {
			s[key] = emptyValues[key][r.IntN(len(emptyValues[key]))]
		}
	}
	fields, _ := s["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		addEmptyValues(r, fields[name].(map[string]any))
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if below, ok := s[key].(map[string]any); ok {
			addEmptyValues(r, below)
		}
	}
}

const emptyValuesCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"odds.example.com","creationTimestamp":null,"labels":{}},
"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"odds","kind":"odds","shortNames":[]},"versions":[{"name":"v1","served":true,"storage":true,"additionalPrinterColumns":[],
"selectableFields":null,"subresources":{},"schema":{"openAPIV3Schema":{"type":"object","properties":{"a":{"type":"string"},"n":{"type":"integer"},"f":{"type":"number","default":1.0},
"l":{"type":"array","items":{"type":"object","properties":{"b":{"type":"boolean"}}}},"m":{"type":"object","additionalProperties":{"type":"string"}},
"x":{"x-kubernetes-preserve-unknown-fields":true,"default":{"a":[],"b":{},"c":1.0}}}}}}]},
"status":{"acceptedNames":{"kind":"","plural":""},"conditions":null,"storedVersions":[]}}`

// TestRepeatedWritesWithEmptyValues checks that a repeated write of a CRD with empty values changes nothing (CRD-042).
func TestRepeatedWritesWithEmptyValues(t *testing.T) {
	c, accepted := newClient(t, testserver.Start(t).Config), 0
	for seed := range 60 {
		var crd map[string]any
		read := json.NewDecoder(strings.NewReader(strings.ReplaceAll(emptyValuesCRD, "odds",
			fmt.Sprintf("odds%d", seed))))
		read.UseNumber() // so that 1.0 is not decoded to 1
		if err := read.Decode(&crd); err != nil {
			t.Fatal(err)
		}
		version := nested[[]any](crd, "spec", "versions")[0]
		addEmptyValues(rand.New(rand.NewPCG(uint64(seed), 7)),
			nested[map[string]any](version, "schema", "openAPIV3Schema"))
		manifest, err := json.Marshal(crd)
		if err != nil {
			t.Fatal(err)
		}
		path := crdPath + nested[string](crd, "metadata", "name")
		if _, err := c.do("PATCH", path+asManager, asApply, manifest); err != nil {
			continue // invalid, which other tests cover
		}
		accepted++
		testRewrites(t, c, fmt.Sprintf("seed %d: %s", seed, manifest), path, manifest, true)
		if t.Failed() {
			return
		}
	}
	if accepted < 10 {
		t.Errorf("got %d accepted CRDs, want at least 10", accepted)
	}
}
