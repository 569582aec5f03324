package crd

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	upstream "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/crd/crdvalidation"
	"github.com/trellis-k8s/trellis/internal/object"
)

// upstreamErrors decodes a new CRD with its Go type and returns upstream's validation errors.
func upstreamErrors(t *testing.T, js []byte) field.ErrorList {
	t.Helper()
	var v1 apiextensionsv1.CustomResourceDefinition
	if err := kjson.UnmarshalCaseSensitivePreserveInts(js, &v1); err != nil {
		t.Fatal(err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&v1.Spec)
	var crd apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, &crd,
		nil); err != nil {
		t.Fatal(err)
	}
	crd.Status.StoredVersions, crd.CreationTimestamp, crd.UID = []string{"v1"}, metav1.Now(), "u"
	return slices.DeleteFunc(upstream.ValidateCustomResourceDefinition(t.Context(), &crd), func(e *field.Error) bool {
		return regexp.MustCompile(`^(status|metadata)\.`).MatchString(e.Field)
	})
}

// validateNew returns this package's validation errors for a new CRD, and the spec that would be stored.
func validateNew(t *testing.T, js []byte) (field.ErrorList, object.Tree) {
	t.Helper()
	k := Definition(Config{})
	d, err := k.Storage.Type.Decode(js)
	if err != nil {
		t.Fatal(err)
	}
	form := d.Tree
	defaultCRD(form)
	obj := maps.Clone(form)
	obj["spec"], obj["status"] = crdvalidation.RoundTrip(object.TreeAt(form, "spec")), object.Tree{"storedVersions": []any{"v1"}}
	return validateCRD(form, obj, nil, ""), object.TreeAt(obj, "spec")
}

func messages(errs field.ErrorList) (all []string) {
	for _, e := range errs {
		all = append(all, e.Error())
	}
	slices.Sort(all)
	return all
}

// twoVersionCRD returns a CRD with two versions and their schemas. The parameter rest holds the other fields of each
// version in JSON.
func twoVersionCRD(schema, rest, second string) []byte {
	return fmt.Appendf(nil,
		`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"foos.example.com"},
"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"foos","kind":"Foo"},"versions":[
{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":%s}%s},{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":%s}%[2]s}]}}`, schema, rest, second)
}

// TestEmptyFieldsOfCRDs checks that empty fields in a CRD have upstream's validation errors, which differ from those
// of missing fields. It also checks that empty fields are not stored (CRD-036, SCH-012, SCH-035).
func TestEmptyFieldsOfCRDs(t *testing.T) {
	const status = `,"subresources":{"status":{}}`
	invalid := 0
	for _, c := range []struct{ schema, rest string }{
		{`{"type":"object","properties":{"metadata":{"type":"object","required":[]}}}`, ""},
		{`{"type":"object","properties":{"metadata":{"type":"object","properties":{}}}}`, ""},
		{`{"type":"object","enum":[]}`, status}, {`{"type":"object","anyOf":[]}`, status},
		{`{"type":"object","required":[]}`, status},
		{`{"type":"object","x-kubernetes-list-map-keys":[]}`, status}, {`{"type":"object","definitions":{}}`, status},
		{`{"type":"object","x-kubernetes-validations":[]}`, status},
		{`{"type":"object","dependencies":{}}`, ""}, {`{"type":"object","patternProperties":{}}`, ""},
		{`{"type":"object","definitions":{}}`, ""},
		{
			`{"type":"object","properties":{"a":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer","enum":[]},{"type":"string"}]}}}`, "",
		},
		{
			`{"type":"object","properties":{"a":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer","items":[]},{"type":"string"}]}}}`, "",
		},
		{
			`{"type":"object","properties":{"a":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer","required":[]},{"type":"string"}]}}}`, "",
		},
		{
			`{"type":"object","properties":{"a":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string","properties":{}}]}}}`, "",
		},
		{
			`{"type":"object","properties":{"a":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer","definitions":{},"$ref":"","oneOf":[]},{"type":"string"}]}}}`, "",
		},
		{
			`{"type":"object","properties":{"metadata":{"type":"object","enum":[],"allOf":[],"patternProperties":{},"items":[]}}}`, "",
		}, {`{"type":"object","properties":{"metadata":{"type":"object","x-kubernetes-validations":[]}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"array","items":[]}}}`, ""},
		{`{"type":"object","properties":{"a":{"type":"object","items":[],"enum":[]}}}`, ""},
		{
			`{"type":"object","properties":{"a":{"type":"array","items":{},"x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":[]}}}`, "",
		},
		{`{"type":"object"}`, `,"selectableFields":[],"additionalPrinterColumns":[]`},
	} {
		for _, second := range []string{c.schema, `{"type":"object"}`, `{"type":"object","description":"another"}`} {
			js := twoVersionCRD(c.schema, c.rest, second)
			errs, _ := validateNew(t, js)
			invalid += len(errs)
			if got, want := messages(errs), messages(upstreamErrors(t, js)); !slices.Equal(got, want) {
				t.Errorf("%s%s and %s:\ngot  %q\nwant %q", c.schema, c.rest, second, got, want)
			}
		}
	}
	if invalid == 0 {
		t.Error("got no validation errors for any CRD")
	}
}

// TestStoredCRDs checks that the stored JSON of a CRD equals the one that its Go type encodes.
func TestStoredCRDs(t *testing.T) {
	odd := []string{`"required":[]`, `"enum":[]`, `"allOf":[]`, `"items":[]`, `"properties":{}`, `"definitions":{}`,
		`"x-kubernetes-validations":[]`, `"description":null`, `"title":""`, `"nullable":false`,
		`"minimum":0`, `"minimum":1.0`, `"maximum":1e2`, `"maximum":9223372036854775807`, `"multipleOf":0.5`,
		`"default":{"a":[],"b":{},"c":1.0,"enum":[]}`, `"enum":[[],{},1.0,null]`, `"example":-0.0`,
		`"not":{"anyOf":[]}`}
	for seed := range 200 {
		r := rand.New(rand.NewPCG(uint64(seed), 11))
		schema := `{"type":"object"`
		for _, i := range r.Perm(len(odd))[:r.IntN(5)] {
			schema += "," + odd[i]
		}
		js := twoVersionCRD(`{"type":"object","properties":{"a":`+schema+`}}}`, "", `{"type":"object"}`)
		_, stored := validateNew(t, js)
		var v1 apiextensionsv1.CustomResourceDefinition
		if err := kjson.UnmarshalCaseSensitivePreserveInts(js, &v1); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the first round encodes empty items as null, and the second drops them
			text, err := json.Marshal(&v1)
			if err != nil {
				t.Fatal(err)
			}
			v1 = apiextensionsv1.CustomResourceDefinition{}
			if err := kjson.UnmarshalCaseSensitivePreserveInts(text, &v1); err != nil {
				t.Fatal(err)
			}
		}
		text, err := json.Marshal(&v1)
		if err != nil {
			t.Fatal(err)
		}
		want, _, err := object.DecodeJSON(text)
		if err != nil {
			t.Fatal(err)
		}
		object.NormalizeNumbers(want) // values such as defaults retain their format
		if !object.Equal(stored["versions"], object.At(want, "spec", "versions")) {
			t.Fatalf("%s:\ngot  %s\nwant %s", schema, object.AppendJSON(nil, stored["versions"]),
				object.AppendJSON(nil, object.At(want, "spec", "versions")))
		}
		if again, _, err := object.DecodeJSON(object.AppendJSON(nil, stored)); err != nil ||
			!object.Equal(again, stored) {
			t.Fatalf("%s: decoded again: got %s, error %v", schema, object.AppendJSON(nil, again), err)
		}
	}
}
