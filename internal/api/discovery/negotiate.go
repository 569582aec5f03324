package discovery

import (
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
)

// codecs encode objects as JSON, YAML and protobuf, without a version conversion.
var codecs = scheme.Codecs.WithoutConversion()

// form is the negotiated encoding of aggregated discovery.
type form struct {
	runtime.Serializer
	mediaType string
	pretty    bool
}

// plainJSON reports whether the encoded parts of the groups can be written unchanged.
func (f form) plainJSON() bool { return f.mediaType == runtime.ContentTypeJSON && !f.pretty }

// aggregatedOnly restricts negotiation to aggregated discovery.
type aggregatedOnly struct {
	negotiation.EndpointRestrictions
}

// AllowsMediaTypeTransform implements negotiation.EndpointRestrictions.
func (aggregatedOnly) AllowsMediaTypeTransform(_, _ string, target *schema.GroupVersionKind) bool {
	return target != nil && target.Group == "apidiscovery.k8s.io" && target.Kind == "APIGroupDiscoveryList" &&
		target.Version == "v2"
}

// encode encodes doc. It ends indented JSON with a newline, which upstream's serializer omits.
func encode(s runtime.Serializer, pretty bool, doc runtime.Object) ([]byte, error) {
	body, err := runtime.Encode(s, doc)
	if pretty {
		body = append(body, '\n')
	}
	return body, err
}

// negotiateAggregated returns the encoding of aggregated discovery, and whether the client prefers aggregated
// discovery.
func negotiateAggregated(r *http.Request) (form, bool) {
	options, info, err := negotiation.NegotiateOutputMediaType(
		r, codecs, aggregatedOnly{negotiation.DefaultEndpointRestrictions})
	if err != nil || options.Convert == nil {
		return form{}, false
	}
	return form{info.Serializer, info.MediaType, info.Serializer == info.PrettySerializer}, true
}

// serve writes doc with the given apiVersion, in the encoding that the client prefers.
func serve(w http.ResponseWriter, r *http.Request, doc runtime.Object, apiVersion string) {
	_, info, err := negotiation.NegotiateOutputMediaType(r, codecs, negotiation.DefaultEndpointRestrictions)
	if err != nil {
		serveError(w, runtime.ContentTypeJSON, err)
		return
	}
	kind := strings.TrimPrefix(fmt.Sprintf("%T", doc), "*v1.")
	doc.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	body, err := encode(info.Serializer, info.Serializer == info.PrettySerializer, doc)
	if err != nil {
		http.Error(w, fmt.Sprintf("encode %s: %v", kind, err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", info.MediaType)
	respond(w, r, [][]byte{body})
}

// serveNotFound writes the response to an unknown path. As in package api, the media type prevents clients from
// decoding the Status.
func serveNotFound(w http.ResponseWriter) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	serveError(w, "text/plain; charset=utf-8", apierrors.NewGenericServerResponse(
		http.StatusNotFound, "", schema.GroupResource{}, "", "404: Page Not Found", 0, false))
}

// serveError writes the Status of an error.
func serveError(w http.ResponseWriter, mediaType string, err error) {
	status, m := encoding.StatusOf(err), encoding.Media{Pretty: true}
	body, err := m.EncodeStatus(status)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(int(status.Code))
	w.Write(body)
}
