package openapi

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	openapiv2 "k8s.io/apiextensions-apiserver/pkg/controller/openapi/v2"
)

var schemaSeeds = []string{
	`{"type":"object","properties":{"spec":{"type":"object","required":["a"],"properties":{"a":{"type":"string",
"nullable":true},"b":{"x-kubernetes-int-or-string":true}}}}}`,
	`{"type":"object","x-kubernetes-preserve-unknown-fields":true}`,
	`{"type":"object","properties":{"a":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},
{"type":"string"}]},"b":{"x-kubernetes-int-or-string":true,"allOf":[{"anyOf":[{"type":"integer"},{"type":"string"}]},
{"pattern":"x"}]},"c":{"x-kubernetes-int-or-string":true,"anyOf":[{"pattern":"a"}]}}}`,
	`{"type":"object","properties":{"l":{"type":"array","items":{"type":"object","properties":{"n":{"type":"string",
"default":"a<b"}}},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["n"]},"e":{"type":"object",
"x-kubernetes-preserve-unknown-fields":true}}}`,
	`{"type":"object","properties":{"m":{"type":"object","additionalProperties":{"type":"string","nullable":true},
"required":["x"]},"f":{"type":"object","additionalProperties":true},"g":{"type":"object",
"additionalProperties":false}},"not":{"required":["z"]}}`,
	`{"type":"object","properties":{"metadata":{"type":"object","properties":{"name":{"type":"string","maxLength":5}}},
"a":{"type":"object","properties":{"x":{"type":"integer"}},"oneOf":[{"properties":{"x":{"minimum":3}}},
{"properties":{"y":{"minimum":3}}}]}}}`,
}

// upstreamSchema returns upstream's structural schema, or nil if the schema must not be published.
func upstreamSchema(props *apiextensionsv1.JSONSchemaProps) *structuralschema.Structural {
	internal := &apiextensions.JSONSchemaProps{}
	if apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(props, internal, nil) != nil {
		return nil
	}
	if validation.SchemaHasInvalidTypes(internal) {
		return nil
	}
	s, err := structuralschema.NewStructural(internal)
	if err != nil || len(structuralschema.ValidateStructural(nil, s)) > 0 {
		return nil
	}
	// ValidateStructural changes the metadata schema of its argument, so the schema is built again.
	s, err = structuralschema.NewStructural(internal)
	if err != nil {
		return nil
	}
	return s.Unfold()
}

// checkSchema compares the published schema with upstream's, without the fields that all objects have. It reports
// whether the schema may be published.
func checkSchema(t *testing.T, text []byte) bool {
	t.Helper()
	props := &apiextensionsv1.JSONSchemaProps{}
	if json.Unmarshal(text, props) != nil {
		return false
	}
	stored, err := json.Marshal(props) // as in a decoded CRD
	if err != nil {
		return false
	}
	props = &apiextensionsv1.JSONSchemaProps{}
	if err := json.Unmarshal(stored, props); err != nil {
		t.Fatal(err)
	}
	n, err := parsePublishable(stored, true)
	if err != nil {
		t.Fatalf("%s: %v", stored, err)
	}
	want := upstreamSchema(props)
	if (n != nil) != (want != nil) {
		t.Fatalf("%s: got structural %v, want %v as upstream", stored, n != nil, want != nil)
	}
	if want == nil || strings.Contains(string(stored), "x-kubernetes-embedded-resource") {
		return want != nil
	}
	for _, e := range []edition{v2, v3} {
		s := want
		if e == v2 {
			s = openapiv2.ToStructuralOpenAPIV2(want)
		}
		got := (&publisher{edition: e}).appendNode(nil, n)
		model := asTree(t, s.ToKubeOpenAPI())
		if e == v2 {
			pruneDefaults(model, false)
		}
		mustEqual(t, string(stored), tree(t, got), model)
	}
	return true
}

// FuzzSchema compares the published form of any schema with upstream's (OAS-002, OAS-003, OAS-005, OAS-010, OAS-011,
// OAS-013, OAS-014).
func FuzzSchema(f *testing.F) {
	for _, s := range schemaSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) <= 4096 {
			checkSchema(t, text)
		}
	})
}

// TestMutatedSchemas compares the published form of randomly changed schemas with upstream's (OAS-002, OAS-003,
// OAS-005, OAS-010, OAS-011, OAS-013, OAS-014).
func TestMutatedSchemas(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	published := 0
	for i := range 5000 {
		schema := tree(t, []byte(schemaSeeds[i%len(schemaSeeds)]))
		for range 1 + r.IntN(3) {
			mutate(r, schema)
		}
		text, err := json.Marshal(schema)
		if err != nil {
			t.Fatal(err)
		}
		if checkSchema(t, text) {
			published++
		}
	}
	if published < 500 {
		t.Errorf("got %d publishable schemas, want at least 500", published)
	}
}

// mutate adds or removes a field of a random node of a schema.
func mutate(r *rand.Rand, schema map[string]any) {
	node := schema
	for r.IntN(4) > 0 { // descend to a child
		var children []map[string]any
		for _, v := range node {
			switch v := v.(type) {
			case map[string]any:
				children = append(children, v)
			case []any:
				for _, item := range v {
					if m, ok := item.(map[string]any); ok {
						children = append(children, m)
					}
				}
			}
		}
		if len(children) == 0 {
			break
		}
		node = children[r.IntN(len(children))]
	}
	parts := []string{
		`"type":"object"`, `"type":"array"`, `"type":"string"`, `"type":"nonsense"`, `"nullable":true`,
		`"items":{"type":"string"}`, `"items":{}`,
		`"properties":{"a":{"type":"string","nullable":true},"q":{"type":"array","items":{"type":"integer"}}}`,
		`"properties":{"kind":{"type":"string"},"metadata":{"type":"object"}}`,
		`"required":["a","spec"]`, `"required":[]`,
		`"anyOf":[{"required":["a"]},{"properties":{"a":{"pattern":"^x"}}}]`, `"allOf":[{"not":{"maxLength":3}}]`,
		`"anyOf":[{"type":"integer"},{"type":"string"}]`,
		`"oneOf":[{"items":{"minimum":0}}]`, `"not":{"properties":{"zz":{"enum":[1,"a",null]}}}`,
		`"x-kubernetes-int-or-string":true`, `"x-kubernetes-preserve-unknown-fields":true`,
		`"x-kubernetes-embedded-resource":true`, `"additionalProperties":{"type":"integer","nullable":true}`,
		`"additionalProperties":true`, `"additionalProperties":false`, `"pattern":"("`, `"pattern":"a{1,2}"`,
		`"default":{"a":false}`, `"default":null`, `"enum":[]`, `"enum":["a",1.5]`,
		`"description":"\u003ca\u003e \"x\""`, `"title":""`,
		`"x-kubernetes-validations":[{"rule":"self.a > 1","message":"no"}]`, `"example":0`,
		`"minimum":0`, `"exclusiveMinimum":false`, `"maximum":9223372036854775807`, `"maxLength":0`,
		`"uniqueItems":false`, `"externalDocs":{"url":"x"}`, `"x-kubernetes-map-type":"atomic"`, `"format":"int64"`,
		`"$ref":"x"`, `"id":"y"`,
	}
	name, value, _ := strings.Cut(parts[r.IntN(len(parts))], ":")
	name = strings.Trim(name, `"`)
	if r.IntN(4) == 0 {
		for k := range node {
			name = k
			break
		}
		delete(node, name)
		return
	}
	var decoded any
	if err := json.Unmarshal([]byte(value), &decoded); err != nil {
		panic(value)
	}
	node[name] = decoded
}

// FuzzText checks that the parser of schemas and the transcoder do not panic on any text, and write valid JSON.
func FuzzText(f *testing.F) {
	for _, s := range append(schemaSeeds,
		`{"paths":{"/a":{"get":{"parameters":[{"in":"body"},{"$ref":"#"},{"in":"query"}]}}},
"definitions":{"a":{"type":["a"],"default":{}}}}`) {
		f.Add([]byte(s))
	}
	p := map[edition]*publisher{v2: {edition: v2}, v3: {edition: v3}}
	f.Fuzz(func(t *testing.T, text []byte) {
		n, err := parsePublishable(text, len(text)%2 == 0)
		for _, e := range []edition{v2, v3} {
			_, _ = newTranscoder(e).encode(text)
			if err == nil && json.Valid(text) {
				if out := p[e].appendRoot(nil, n, ""); !json.Valid(out) {
					t.Errorf("%q: got %q, want valid JSON", text, out)
				}
			}
		}
	})
}
