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

// rewrite is a write of a CRD that says what is stored already.
type rewrite struct {
	what, method, query, contentType string
	body                             func(manifest, stored []byte) ([]byte, error)
}

const (
	asJSON      = "application/json"
	asJSONPatch = "application/json-patch+json"
	asStrategic = "application/strategic-merge-patch+json"
	ours        = "?fieldManager=corpus"
	others      = "?fieldManager=other"
)

var rewrites = []rewrite{
	{"the stored CRD, by PUT", "PUT", others, asJSON, storedCRD},
	{"the stored CRD as Go writes it, by PUT", "PUT", others, asJSON, func(_, stored []byte) ([]byte, error) { return asGoWrites(stored) }},
	{"the stored CRD, by PUT in protobuf", "PUT", others, "application/vnd.kubernetes.protobuf", func(_, stored []byte) ([]byte, error) {
		var typed apiextensionsv1.CustomResourceDefinition
		if err := json.Unmarshal(stored, &typed); err != nil {
			return nil, err
		}
		var out bytes.Buffer
		err := protobuf.NewSerializer(nil, nil).Encode(&typed, &out)
		return out.Bytes(), err
	}},
	{"the stored CRD, by a merge patch", "PATCH", others, asMerge, storedCRD},
	{"the stored CRD, by a strategic merge patch", "PATCH", others, asStrategic, storedCRD},
	{"the stored spec, by a JSON patch", "PATCH", others, asJSONPatch, func(_, stored []byte) ([]byte, error) {
		spec := member(stored, "spec")
		return json.Marshal([]any{map[string]any{"op": "test", "path": "/spec", "value": spec}, map[string]any{"op": "replace", "path": "/spec", "value": spec}})
	}},
	{"the manifest, by an apply", "PATCH", ours, asApply, func(manifest, _ []byte) ([]byte, error) { return manifest, nil }},
	{"the manifest, by PUT", "PUT", others, asJSON, replacing},
	{"the manifest as Go writes it, by PUT", "PUT", others, asJSON, func(manifest, stored []byte) ([]byte, error) {
		written, err := asGoWrites(manifest)
		if err != nil {
			return nil, err
		}
		return replacing(written, stored)
	}},
}

func storedCRD(_, stored []byte) ([]byte, error) { return stored, nil }

// asGoWrites is a CRD as a client makes it that reads it into its Go type.
func asGoWrites(crd []byte) ([]byte, error) {
	var typed apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(crd, &typed); err != nil {
		return nil, err
	}
	return json.Marshal(&typed)
}

// replacing is a manifest for a PUT over what is stored.
func replacing(manifest, stored []byte) ([]byte, error) {
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

// repeat writes a CRD that is stored in every way there is, after which it must be what it was: to the byte, or, if the manifest
// says nothing in odd ways, but for its resourceVersion and who owns it, which is settled the second time.
func repeat(t *testing.T, c *client, what, path string, manifest []byte, odd bool) {
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
				t.Errorf("%s: %s: %.500v", what, w.what, err)
				return
			}
			if strict := !odd || again > 0; strict && !bytes.Equal(before, after) || generation(before) != generation(after) {
				t.Errorf("%s: %s: it was\n%.4000s\nand became\n%.4000s", what, w.what, before, after)
				return
			}
			before = after
		}
	}
}

func generation(crd []byte) float64 { return nested[float64](member(crd, "metadata"), "generation") }

// CRD-042: whoever writes a real CRD again, as it is stored or as it was written, in whatever way, changes nothing.
// TRELLIS_CORPUS=all takes all of them.
func TestRepeatedWritesOfCRDs(t *testing.T) {
	requireCorpus(t)
	c, n := newClient(t, testserver.Start(t).Config), 0
	for _, project := range projects(t, "crds") {
		for _, crd := range read(t, "crds", project) {
			if n++; n%40 != 0 && os.Getenv("TRELLIS_CORPUS") != "all" {
				continue
			}
			path := crdPath + crd.name()
			if _, err := c.do("PATCH", path+ours, asApply, crd.yaml); err != nil {
				t.Errorf("%s: %v", crd.path, err)
				continue
			}
			repeat(t, c, crd.path, path, crd.yaml, false)
			remove(t, c, crd)
		}
	}
}

// nothings are ways to say nothing of a value.
var nothings = map[string][]any{
	"description": {nil, ""}, "title": {nil, ""}, "format": {nil, ""}, "pattern": {nil, ""}, "nullable": {nil, false}, "uniqueItems": {nil, false}, "exclusiveMinimum": {nil, false},
	"x-kubernetes-embedded-resource": {nil, false}, "x-kubernetes-int-or-string": {nil, false}, "x-kubernetes-preserve-unknown-fields": {nil}, "x-kubernetes-list-type": {nil},
	"required": {nil, []any{}}, "enum": {nil, []any{}}, "allOf": {nil, []any{}}, "anyOf": {nil, []any{}}, "oneOf": {nil, []any{}}, "not": {nil}, "items": {nil, []any{}},
	"properties": {nil, map[string]any{}}, "patternProperties": {nil, map[string]any{}}, "definitions": {nil, map[string]any{}}, "additionalProperties": {nil},
	"x-kubernetes-list-map-keys": {nil, []any{}}, "x-kubernetes-validations": {nil, []any{}}, "default": {nil}, "example": {nil, json.Number("1.0")}, "maxLength": {nil}, "externalDocs": {nil},
	"minimum": {nil, json.Number("0.0"), json.Number("1e2")}, "maximum": {nil, json.Number("100.0"), json.Number("9007199254740993"), json.Number("1e300")}, "multipleOf": {nil, json.Number("1.0")},
}

// addNothings adds some to the schema s and those below it.
func addNothings(r *rand.Rand, s map[string]any) {
	keys := slices.Sorted(maps.Keys(nothings))
	for range r.IntN(4) {
		key := keys[r.IntN(len(keys))]
		if _, ok := s[key]; !ok {
			s[key] = nothings[key][r.IntN(len(nothings[key]))]
		}
	}
	fields, _ := s["properties"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		addNothings(r, fields[name].(map[string]any))
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if below, ok := s[key].(map[string]any); ok {
			addNothings(r, below)
		}
	}
}

const oddCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"odds.example.com","creationTimestamp":null,"labels":{}},
"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"odds","kind":"odds","shortNames":[]},"versions":[{"name":"v1","served":true,"storage":true,"additionalPrinterColumns":[],
"selectableFields":null,"subresources":{},"schema":{"openAPIV3Schema":{"type":"object","properties":{"a":{"type":"string"},"n":{"type":"integer"},"f":{"type":"number","default":1.0},
"l":{"type":"array","items":{"type":"object","properties":{"b":{"type":"boolean"}}}},"m":{"type":"object","additionalProperties":{"type":"string"}},
"x":{"x-kubernetes-preserve-unknown-fields":true,"default":{"a":[],"b":{},"c":1.0}}}}}}]},
"status":{"acceptedNames":{"kind":"","plural":""},"conditions":null,"storedVersions":[]}}`

// CRD-042: so does who writes one that says nothing in odd ways.
func TestRepeatedWritesOfOddCRDs(t *testing.T) {
	c, accepted := newClient(t, testserver.Start(t).Config), 0
	for seed := range 60 {
		var crd map[string]any
		read := json.NewDecoder(strings.NewReader(strings.ReplaceAll(oddCRD, "odds", fmt.Sprintf("odds%d", seed))))
		read.UseNumber() // 1.0 is to stay what it is
		if err := read.Decode(&crd); err != nil {
			t.Fatal(err)
		}
		version := nested[[]any](crd, "spec", "versions")[0]
		addNothings(rand.New(rand.NewPCG(uint64(seed), 7)), nested[map[string]any](version, "schema", "openAPIV3Schema"))
		manifest, err := json.Marshal(crd)
		if err != nil {
			t.Fatal(err)
		}
		path := crdPath + nested[string](crd, "metadata", "name")
		if _, err := c.do("PATCH", path+ours, asApply, manifest); err != nil {
			continue // judged elsewhere
		}
		accepted++
		repeat(t, c, fmt.Sprintf("seed %d: %s", seed, manifest), path, manifest, true)
		if t.Failed() {
			return
		}
	}
	if accepted < 10 {
		t.Errorf("only %d of the CRDs were accepted", accepted)
	}
}
