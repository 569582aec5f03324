package kinds

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

var (
	v1CRD     = &resource.GoType{New: func() runtime.Object { return &apiextensionsv1.CustomResourceDefinition{} }}
	legacyCRD = &resource.GoType{New: func() runtime.Object { return &apiextensionsv1beta1.CustomResourceDefinition{} }}
)

func upstreamScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	install.Install(s)
	return s
}

// corpusCRDs reads the CRDs that a pattern below ../shared finds, one in every so many.
func corpusCRDs(t *testing.T, pattern string, every int) map[string][]byte {
	t.Helper()
	names, _ := filepath.Glob("../../../shared/" + pattern)
	if len(names) == 0 {
		t.Skipf("../shared/%s is not there, beside the module", pattern)
	}
	out := map[string][]byte{}
	for i, name := range names {
		if i%every != 0 {
			continue
		}
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if out[name], err = yaml.YAMLToJSON(data); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// convertUpstream is what upstream's scheme makes of an object, with defaults if it comes from a client.
func convertUpstream(t *testing.T, s *runtime.Scheme, from runtime.Object, to runtime.Object, defaults bool) object.Tree {
	t.Helper()
	if defaults {
		s.Default(from)
	}
	hub := &apiextensions.CustomResourceDefinition{}
	if err := s.Convert(from, hub, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Convert(hub, to, nil); err != nil {
		t.Fatal(err)
	}
	out, err := resource.ToTree(to)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func decodeCRD(t *testing.T, g *resource.GoType, js []byte) object.Tree {
	t.Helper()
	d, err := g.Decode(js)
	if err != nil {
		t.Fatal(err)
	}
	return d.Tree
}

// CNV-064 CNV-066 CNV-071: a CRD that was written as v1 is shown as v1beta1 as upstream converts it, and comes back the
// same: nothing is lost on the way.
func TestV1ThroughLegacyAndBack(t *testing.T) {
	s := upstreamScheme()
	every := 9
	if os.Getenv("TRELLIS_CORPUS") == "all" {
		every = 1
	}
	tops := 0
	for name, js := range corpusCRDs(t, "corpus/crds/*/*.yaml", every) {
		stored := decodeCRD(t, v1CRD, js)
		defaultCRD(stored)
		before := object.Copy(stored)
		legacy, err := toLegacyCRD(stored)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		typed := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Copy(stored), typed); err != nil {
			t.Fatal(err)
		}
		want := convertUpstream(t, s, typed, &apiextensionsv1beta1.CustomResourceDefinition{}, false)
		if !object.Equal(legacy["spec"], want["spec"]) {
			t.Errorf("%s: v1beta1 is\n%s\nand of upstream\n%s", name, object.AppendJSON(nil, legacy), object.AppendJSON(nil, want))
		}
		if tree(legacy, "spec", "validation") != nil {
			tops++
		}
		// what a client reads, it writes back
		again := decodeCRD(t, legacyCRD, object.AppendJSON(nil, legacy))
		defaultLegacyCRD(again)
		back, err := fromLegacyCRD(again)
		if err != nil {
			t.Fatal(err)
		}
		if !object.Equal(back, before) {
			t.Errorf("%s: came back as\n%s\nwas\n%s", name, object.AppendJSON(nil, back), object.AppendJSON(nil, before))
		}
		if !object.Equal(stored, before) {
			t.Errorf("%s: conversion changed what it was given", name)
		}
	}
	if tops == 0 {
		t.Error("no CRD had a schema for all versions")
	}
}

// CNV-066 CNV-067 CNV-068 CNV-029: a CRD of the legacy form gets upstream's defaults, is stored as upstream stores it and is shown as it was written.
func TestLegacyThroughV1AndBack(t *testing.T) {
	s := upstreamScheme()
	all := corpusCRDs(t, "corpus/legacy-v1beta1/*.yaml", 1)
	for name, js := range corpusCRDs(t, "spec/examples/0*/*.v1beta1*.yaml", 1) {
		all[name] = js
	}
	all["one version by name"] = []byte(`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{"name":"as.example.com"},
"spec":{"group":"example.com","version":"v1","names":{"plural":"as","kind":"A"},"subresources":{"status":{}},"additionalPrinterColumns":[{"name":"N","type":"integer","JSONPath":".spec.n"}]}}`)
	all["versions without a version"] = []byte(`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{"name":"as.example.com"},
"spec":{"group":"example.com","versions":[{"name":"v2","served":true,"storage":true},{"name":"v1","served":true,"storage":false}],"names":{"plural":"as","kind":"A"},
"preserveUnknownFields":false,"conversion":{"strategy":"Webhook","webhookClientConfig":{"service":{"name":"n","namespace":"ns"}}},
"selectableFields":[{"jsonPath":".spec.n"}],"validation":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"n":{"type":"integer","default":9007199254740993}}}}}}}}`)
	for name, js := range all {
		typed := &apiextensionsv1beta1.CustomResourceDefinition{}
		if err := yaml.Unmarshal(js, typed); err != nil {
			t.Fatal(err)
		}
		if typed.APIVersion != apiextensionsv1beta1.SchemeGroupVersion.String() {
			continue
		}
		written := decodeCRD(t, legacyCRD, js)
		defaultLegacyCRD(written)
		stored, err := fromLegacyCRD(written)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		want := convertUpstream(t, s, typed, &apiextensionsv1.CustomResourceDefinition{}, true)
		if !object.Equal(stored["spec"], want["spec"]) {
			t.Errorf("%s: stored as\n%s\nupstream\n%s", name, object.AppendJSON(nil, stored), object.AppendJSON(nil, want))
		}
		shown, err := toLegacyCRD(stored)
		if err != nil {
			t.Fatal(err)
		}
		if !object.Equal(shown, written) {
			t.Errorf("%s: shown as\n%s\nwritten\n%s", name, object.AppendJSON(nil, shown), object.AppendJSON(nil, written))
		}
	}
}

// FuzzLegacyCRD: whatever a client sends, the way to the stored form and back neither panics nor ends elsewhere.
func FuzzLegacyCRD(f *testing.F) {
	f.Add([]byte(`{"spec":{"version":"v1","validation":{"openAPIV3Schema":{"default":1,"items":[{}],"additionalItems":false}}}}`))
	f.Add([]byte(`{"spec":{"versions":[{"name":"a","schema":{}},{"name":"b","additionalPrinterColumns":[{"JSONPath":"."}]}],"conversion":{"strategy":"Webhook","webhookClientConfig":{"service":{}}}}}`))
	f.Fuzz(func(t *testing.T, js []byte) {
		d, err := legacyCRD.Decode(js)
		if err != nil {
			return
		}
		written := d.Tree
		defaultLegacyCRD(written)
		validateLegacyCRD(written, written, nil, "")
		stored, err := fromLegacyCRD(written)
		if err != nil {
			return
		}
		shown, err := toLegacyCRD(stored)
		if err != nil {
			t.Fatal(err)
		}
		again, err := fromLegacyCRD(shown)
		if err != nil || !object.Equal(again["spec"], stored["spec"]) {
			t.Errorf("%v: %s\n%s", err, object.AppendJSON(nil, again), object.AppendJSON(nil, stored))
		}
	})
}

// BenchmarkLegacyCRD is what reading a CRD at v1beta1 costs beyond its bytes, the first time.
func BenchmarkLegacyCRD(b *testing.B) {
	d, err := v1CRD.Decode([]byte(`{"metadata":{"name":"as.example.com"},"spec":{"group":"example.com","names":{"plural":"as","kind":"A"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"n":{"type":"integer"}}}}}}}]}}`))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := toLegacyCRD(d.Tree); err != nil {
			b.Fatal(err)
		}
	}
}
