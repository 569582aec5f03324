package crd

import (
	"reflect"
	"strings"
	"testing"

	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestCodec checks that the form in which kube-apiserver stores a CRD decodes to v1, and that v1 is not changed.
func TestCodec(t *testing.T) {
	const crd = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",` +
		`"metadata":{"creationTimestamp":"2026-01-02T03:04:05Z","name":"things.example.com"},` +
		`"spec":{"conversion":{"strategy":"None"},"group":"example.com","names":{"kind":"Thing","listKind":"ThingList",` +
		`"plural":"things","singular":"thing"},"scope":"Namespaced","versions":[{"name":"v1","schema":` +
		`{"openAPIV3Schema":{"properties":{"a":{"default":1,"type":"integer"}},"type":"object"}},"served":true,` +
		`"storage":true,"subresources":{"status":{}}}]},"status":{"acceptedNames":{"kind":"Thing","plural":"things"},` +
		`"conditions":[],"storedVersions":["v1"]}}`
	upstream := serializer.NewCodecFactory(upstreamScheme()).LegacyCodec(apiextensionsv1beta1.SchemeGroupVersion)
	obj, err := runtime.Decode(upstream, []byte(crd))
	if err != nil {
		t.Fatal(err)
	}
	stored, err := runtime.Encode(upstream, obj)
	if err != nil || !strings.Contains(string(stored), `"apiextensions.k8s.io/v1beta1"`) {
		t.Fatal(string(stored), err)
	}
	want, _, err := object.DecodeJSON([]byte(crd))
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{string(stored), crd, crd + "\n"} {
		value, err := Codec().Decode([]byte(data))
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := object.DecodeJSON(value)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("decode %s:\n got %s, %v\nwant %s", data, value, err, crd)
		}
	}
	for _, data := range []string{"", "{", "k8s\x00"} {
		if value, err := Codec().Decode([]byte(data)); err == nil {
			t.Errorf("decode %q: got %s, want an error", data, value)
		}
	}
}
