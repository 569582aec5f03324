package encoding

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// endpointRestrictions are upstream's restrictions of media types for a kind. protobuf is set for built-in kinds.
type endpointRestrictions struct{ protobuf bool }

func (k endpointRestrictions) AllowsMediaTypeTransform(_, sub string, gvk *schema.GroupVersionKind) bool {
	if gvk == nil {
		return k.protobuf || sub == "json" || sub == "yaml"
	}
	if gvk.Group != metav1.GroupName || gvk.Version != "v1" && gvk.Version != "v1beta1" {
		return false
	}
	switch gvk.Kind {
	case "Table":
		return sub == "json" || sub == "yaml"
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		return true
	}
	return false
}
func (endpointRestrictions) AllowsServerVersion(v string) bool { return v == "v1" }
func (endpointRestrictions) AllowsStreamSchema(s string) bool  { return s == "watch" }

// FuzzAccept compares the negotiated media type with upstream's (CRD-068, CRD-064).
func FuzzAccept(f *testing.F) {
	for _, h := range []string{
		"", "*/*", "application/*", "application/json", "application/yaml;q=0.5,application/json;q=0.4",
		"application/vnd.kubernetes.protobuf",
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io," +
			"application/json",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
		"application/json;stream=watch;pretty=1", "text/html", ",;=", "application/json;sv=v2",
		"application/yaml;stream=watch,application/json", "application/cbor", `application/json;q="0.5"`,
		"application/json;q=x",
	} {
		f.Add(h, true)
		f.Add(h, false)
	}
	accepted := serializer.NewCodecFactory(runtime.NewScheme()).SupportedMediaTypes()
	c := NewNegotiator(false)
	f.Fuzz(func(t *testing.T, header string, builtin bool) {
		v := &resource.Version{Columns: make([]resource.Column, 1)}
		if builtin {
			v.Type = &resource.GoType{}
		}
		got, ok := c.negotiate(header, v)
		want, wantOK := negotiation.NegotiateMediaTypeOptions(header, accepted, endpointRestrictions{builtin})
		if ok != wantOK {
			t.Fatalf("%q: got acceptable %v, want %v as upstream", header, ok, wantOK)
		}
		if !ok {
			return
		}
		kind := ""
		if want.Convert != nil {
			kind = want.Convert.Kind
		}
		names := map[view]string{ViewObject: "", ViewTable: "Table", ViewPartial: "PartialObjectMetadata",
			ViewPartialList: "PartialObjectMetadataList"}
		if got.MediaType != want.Accepted.MediaType || names[got.View] != kind || got.Pretty != want.Pretty {
			t.Errorf("%q: got %+v, want %v %q as upstream", header, got, want.Accepted.MediaType, kind)
		}
	})
}
