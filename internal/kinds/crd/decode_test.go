package crd

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/crd/crdvalidation"
	"github.com/trellis-k8s/trellis/internal/fixture/outside"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// compareDecoders checks that crdvalidation.Decode and the Go type decode a CRD to the same stored JSON, with the
// same errors. fast reports whether Decode used its fast path, in which the Go type does not decode the schemas.
func compareDecoders(t *testing.T, name string, js []byte) (fast bool) {
	t.Helper()
	k := Definition(Config{})
	g := k.Storage.Type
	fast = true
	got, strict, err := crdvalidation.Decode(js, func(part []byte) (object.Tree, []string, error) {
		fast = fast && !bytes.Equal(js, part)
		d, err := (&resource.GoType{New: g.New}).Decode(part)
		return d.Tree, d.Strict, err
	})
	want, wantErr := (&resource.GoType{New: g.New}).Decode(js)
	if (err == nil) != (wantErr == nil) || !slices.Equal(strict, want.Strict) {
		t.Fatalf("%s: got error %v, strict errors %q; want %v, %q", name, err, strict, wantErr, want.Strict)
	}
	if a, b := encodeCRD(got), encodeCRD(want.Tree); !bytes.Equal(a, b) {
		t.Fatalf("%s:\ngot  %.2000s\nwant %.2000s", name, a, b)
	}
	return fast
}

func encodeCRD(t object.Tree) []byte {
	if spec, ok := t["spec"].(object.Tree); ok {
		t["spec"] = crdvalidation.RoundTrip(spec)
	}
	return object.AppendJSON(nil, t)
}

// TestDecodeCRDs checks that Decode returns the same result as the Go type for real CRDs, and that nearly all of them
// take the fast path.
func TestDecodeCRDs(t *testing.T) {
	files, _ := filepath.Glob(outside.Path("corpus/crds/*/*.yaml"))
	if len(files) == 0 {
		t.Skip("no corpus of CRDs next to this module")
	}
	all, fast := 0, 0
	for i, f := range files {
		if i%9 != 0 {
			continue
		}
		manifest, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		js, err := yaml.YAMLToJSON(manifest)
		if err != nil {
			t.Fatal(err)
		}
		all++
		if compareDecoders(t, f, js) {
			fast++
		}
	}
	if fast*10 < all*9 {
		t.Errorf("got %d of %d CRDs on the fast path, want at least 90%%", fast, all)
	}
}

// TestDecodeOddSchemas checks that Decode returns the same result as the Go type for unusual and invalid CRDs.
func TestDecodeOddSchemas(t *testing.T) {
	for _, schema := range []string{
		`null`, `{}`, `[]`, `1`, `{"type":""}`, `{"type":1}`, `{"type":null}`, `{"nullable":false}`,
		`{"nullable":true}`, `{"maximum":1}`,
		`{"maximum":1.0}`, `{"maximum":1e2}`, `{"maximum":9007199254740993}`, `{"maximum":"1"}`, `{"maxLength":1.0}`,
		`{"maxLength":1}`, `{"maxLength":1.5}`,
		`{"enum":[]}`, `{"items":[]}`, `{"allOf":[{"required":[]}],"not":{"properties":{}}}`,
		`{"properties":{"enum":{"enum":[]},"items":{}}}`,
		`{"unknown":[],"x-kubernetes-validations":[{"rule":"","enum":[]}]}`,
		`{"dependencies":{"a":[],"b":{"anyOf":[]}}}`, `{"enum":[null]}`, `{"enum":[1,"a",1.0,{"a":[1.0,1e400]}]}`,
		`{"enum":[12345678901234567890]}`, `{"default":null}`, `{"default":{"a":null,"b":1.0}}`,
		`{"default":[1e2,12345678901234567890]}`, `{"required":[]}`, `{"required":[1]}`, `{"required":["a"]}`,
		`{"properties":{}}`, `{"properties":{"a":{}}}`, `{"properties":{"a":null}}`,
		`{"items":{}}`, `{"items":[{}]}`, `{"items":null}`, `{"items":{"type":""}}`, `{"items":{"unknown":1}}`,
		`{"unknown":1}`, `{"Type":"x"}`, `{"type":"a","type":"b"}`,
		`{"additionalProperties":false}`, `{"additionalProperties":true}`, `{"additionalProperties":{}}`,
		`{"additionalProperties":null}`, `{"allOf":[{}]}`, `{"allOf":[null]}`,
		`{"not":{}}`, `{"not":null}`, `{"x-kubernetes-validations":[{}]}`, `{"x-kubernetes-validations":[{"rule":""}]}`,
		`{"x-kubernetes-validations":[{"rule":"a","message":""}]}`,
		`{"x-kubernetes-validations":[{"rule":"a","reason":"","optionalOldSelf":false,"fieldPath":".a"}]}`,
		`{"x-kubernetes-list-type":""}`, `{"x-kubernetes-preserve-unknown-fields":false}`,
		`{"$ref":"a"}`, `{"id":"a"}`, `{"definitions":{"a":{}}}`, `{"dependencies":{"a":["b"]}}`,
		`{"externalDocs":{"url":"u"}}`, `{"example":{"a":1}}`, `{"description":"\ud800 <&>"}`,
	} {
		compareDecoders(t, schema,
			[]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"n","labels":{}},"spec":{"group":"g","names":{"kind":"K","plural":""},"versions":[{"name":"v0"},{"name":"v1","served":true,"schema":{"openAPIV3Schema":`+schema+`}}]}}`))
	}
	for _, version := range []string{`null`, `{}`, `[]`, `{"schema":null}`, `{"schema":{}}`, `{"schema":[]}`,
		`{"schema":{"other":1}}`, `{"schema":{"openAPIV3Schema":null}}`} {
		compareDecoders(t, version, []byte(`{"kind":"CustomResourceDefinition","spec":{"versions":[`+version+`]}}`))
	}
	for _, crd := range []string{`null`, `{}`, `[]`, `{"spec":null}`, `{"spec":[]}`, `{"spec":{"versions":{}}}`,
		`{"spec":{"versions":[]}}`, `{"spec":{"versions":null}}`, `{"spec":{"unknown":1}}`} {
		compareDecoders(t, crd, []byte(crd))
	}
}
