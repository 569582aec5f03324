package crd

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

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
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

// corpusCRDs returns, by file name, the JSON of CRDs in the directory ../shared. Of the files that match the pattern,
// it reads every n-th, where n is the parameter every.
func corpusCRDs(t *testing.T, pattern string, every int) map[string][]byte {
	t.Helper()
	names, _ := filepath.Glob(outside.Path(pattern))
	if len(names) == 0 {
		t.Skipf("no files ../shared/%s next to this module", pattern)
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

// convertUpstream converts an object with upstream's scheme. If defaults is true, it sets defaults first.
func convertUpstream(t *testing.T, s *runtime.Scheme, from, to runtime.Object, defaults bool) object.Tree {
	t.Helper()
	if defaults {
		s.Default(from)
	}
	internal := &apiextensions.CustomResourceDefinition{}
	if err := s.Convert(from, internal, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Convert(internal, to, nil); err != nil {
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

// TestV1ThroughLegacyAndBack checks that the conversion of a CRD from v1 to v1beta1 equals upstream's, and that the
// conversion back loses nothing.
// CNV-064 CNV-066 CNV-071
func TestV1ThroughLegacyAndBack(t *testing.T) {
	s := upstreamScheme()
	every := 9
	if os.Getenv("TRELLIS_CORPUS") == "all" {
		every = 1
	}
	shared := 0 // CRDs with one schema for all versions
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
			t.Errorf("%s: v1beta1:\ngot  %s\nwant %s", name, object.AppendJSON(nil, legacy),
				object.AppendJSON(nil, want))
		}
		if object.TreeAt(legacy, "spec", "validation") != nil {
			shared++
		}
		// as if a client wrote the object that it has read
		again := decodeCRD(t, legacyCRD, object.AppendJSON(nil, legacy))
		defaultLegacyCRD(again)
		back, err := fromLegacyCRD(again)
		if err != nil {
			t.Fatal(err)
		}
		if !object.Equal(back, before) {
			t.Errorf("%s: converted back to v1:\ngot  %s\nwant %s", name, object.AppendJSON(nil, back),
				object.AppendJSON(nil, before))
		}
		if !object.Equal(stored, before) {
			t.Errorf("%s: the conversion modified its input", name)
		}
	}
	if shared == 0 {
		t.Error("got no CRD with a schema for all versions")
	}
}

// TestLegacyThroughV1AndBack checks that a CRD in v1beta1 gets upstream's defaults, is stored as upstream stores it,
// and is unchanged when it is converted back.
// CNV-066 CNV-067 CNV-068 CNV-029
func TestLegacyThroughV1AndBack(t *testing.T) {
	s := upstreamScheme()
	all := corpusCRDs(t, "corpus/legacy-v1beta1/*.yaml", 1)
	for name, js := range corpusCRDs(t, "spec/examples/0*/*.v1beta1*.yaml", 1) {
		all[name] = js
	}
	all["one version by name"] = []byte(
		`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{"name":"as.example.com"},
"spec":{"group":"example.com","version":"v1","names":{"plural":"as","kind":"A"},"subresources":{"status":{}},"additionalPrinterColumns":[{"name":"N","type":"integer","JSONPath":".spec.n"}]}}`)
	all["versions without a version"] = []byte(
		`{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","metadata":{"name":"as.example.com"},
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
			t.Errorf("%s: v1:\ngot  %s\nwant %s", name, object.AppendJSON(nil, stored), object.AppendJSON(nil, want))
		}
		shown, err := toLegacyCRD(stored)
		if err != nil {
			t.Fatal(err)
		}
		if !object.Equal(shown, written) {
			t.Errorf("%s: converted back to v1beta1:\ngot  %s\nwant %s", name, object.AppendJSON(nil, shown),
				object.AppendJSON(nil, written))
		}
	}
}

// FuzzLegacyCRD checks that the conversion of any v1beta1 CRD to v1 and back does not panic, and that a second
// conversion to v1 has the same result.
func FuzzLegacyCRD(f *testing.F) {
	f.Add([]byte(
		`{"spec":{"version":"v1","validation":{"openAPIV3Schema":{"default":1,"items":[{}],"additionalItems":false}}}}`))
	f.Add([]byte(
		`{"spec":{"versions":[{"name":"a","schema":{}},{"name":"b","additionalPrinterColumns":[{"JSONPath":"."}]}],"conversion":{"strategy":"Webhook","webhookClientConfig":{"service":{}}}}}`))
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
			t.Errorf("second conversion to v1: got error %v\ngot  %s\nwant %s", err, object.AppendJSON(nil, again),
				object.AppendJSON(nil, stored))
		}
	})
}

// BenchmarkLegacyCRD measures the conversion of a CRD to v1beta1. The server does it when a client first reads the
// CRD at that version.
func BenchmarkLegacyCRD(b *testing.B) {
	d, err := v1CRD.Decode(
		[]byte(`{"metadata":{"name":"as.example.com"},"spec":{"group":"example.com","names":{"plural":"as","kind":"A"},
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
