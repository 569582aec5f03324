package discovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/client-go/kubernetes/scheme"
)

// codecs are JSON, YAML and protobuf. Objects are written as the version that they say.
var codecs = scheme.Codecs.WithoutConversion()

// form is how a client wants aggregated discovery.
type form struct {
	runtime.Serializer
	mediaType string
	pretty    bool
}

// plainJSON says that the ready parts can go out as they lie.
func (f form) plainJSON() bool { return f.mediaType == runtime.ContentTypeJSON && !f.pretty }

// aggregation lets a client have aggregated discovery, and nothing else.
type aggregation struct {
	negotiation.EndpointRestrictions
}

// AllowsMediaTypeTransform implements negotiation.EndpointRestrictions.
func (aggregation) AllowsMediaTypeTransform(_, _ string, target *schema.GroupVersionKind) bool {
	return target != nil && target.Group == "apidiscovery.k8s.io" && target.Kind == "APIGroupDiscoveryList" &&
		target.Version == "v2"
}

// encode ends what a human reads along with a line's end, which upstream's serializer leaves out.
func encode(s runtime.Serializer, pretty bool, doc runtime.Object) ([]byte, error) {
	body, err := runtime.Encode(s, doc)
	if pretty {
		body = append(body, '\n')
	}
	return body, err
}

// wantsAggregated says in which form, if a client prefers aggregated discovery.
func wantsAggregated(r *http.Request) (form, bool) {
	options, info, err := negotiation.NegotiateOutputMediaType(r, codecs, aggregation{negotiation.DefaultEndpointRestrictions})
	if err != nil || options.Convert == nil {
		return form{}, false
	}
	return form{info.Serializer, info.MediaType, info.Serializer == info.PrettySerializer}, true
}

// serve writes doc, which announces itself as of apiVersion, in the form the client asked for.
func serve(w http.ResponseWriter, r *http.Request, doc runtime.Object, apiVersion string) {
	_, info, err := negotiation.NegotiateOutputMediaType(r, codecs, negotiation.DefaultEndpointRestrictions)
	if err != nil {
		refuse(w, runtime.ContentTypeJSON, err)
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

// notServed answers a path that leads nowhere. As the API does, it keeps clients by the media type from taking the Status as it is.
func notServed(w http.ResponseWriter) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	refuse(w, "text/plain; charset=utf-8", apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "404: Page Not Found", 0, false))
}

// refuse answers with the Status of an error.
func refuse(w http.ResponseWriter, mediaType string, err error) {
	var ended apierrors.APIStatus
	if !errors.As(err, &ended) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	status := ended.Status()
	status.Kind, status.APIVersion = "Status", "v1"
	body, err := json.MarshalIndent(status, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.WriteHeader(int(status.Code))
	w.Write(append(body, '\n'))
}
