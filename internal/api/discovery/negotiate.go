package discovery

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

const (
	jsonType     = "application/json"
	yamlType     = "application/yaml"
	protobufType = "application/vnd.kubernetes.protobuf"
)

// form is what a client asked for. version is that of aggregated discovery, or "".
type form struct {
	mediaType string
	pretty    bool
	version   string
}

// allowed decides on the as, g and v parameters of a media type: the version of
// aggregated discovery, "" where there are none of them, or false.
type allowed func(params map[string]string) (version string, ok bool)

func allowPlain(params map[string]string) (string, bool) {
	for _, p := range []string{"as", "g", "v"} {
		if _, ok := params[p]; ok {
			return "", false
		}
	}
	return "", true
}

func allowAggregated(params map[string]string) (string, bool) {
	v := params["v"]
	if params["g"] != "apidiscovery.k8s.io" || params["as"] != "APIGroupDiscoveryList" || v != "v2" && v != "v2beta1" {
		return "", false
	}
	return v, true
}

// negotiate finds the first media type of the Accept header that can be served, or
// false. The rules are those of kube-apiserver: quality first, then the order of the header,
// and the parameters sv and stream refuse.
func negotiate(r *http.Request, allow allowed) (form, bool) {
	header := r.Header.Get("Accept")
	if header == "" {
		version, ok := allow(nil)
		return form{mediaType: jsonType, pretty: pretty(r), version: version}, ok
	}
	for _, clause := range goautoneg.ParseAccept(header) {
		for _, t := range []string{jsonType, yamlType, protobufType} {
			if !matches(clause, t) || clause.Params["sv"] != "" {
				continue
			}
			if s := clause.Params["stream"]; s != "" && s != "watch" {
				continue
			}
			version, ok := allow(clause.Params)
			if !ok {
				continue
			}
			f := form{mediaType: t, version: version}
			f.pretty = t == jsonType && (clause.Params["pretty"] == "1" || pretty(r))
			return f, true
		}
	}
	return form{}, false
}

func matches(clause goautoneg.Accept, mediaType string) bool {
	kind, sub, _ := strings.Cut(mediaType, "/")
	return clause.Type == kind && (clause.SubType == sub || clause.SubType == "*") ||
		clause.Type == "*" && clause.SubType == "*"
}

// pretty says whether a human is thought to read along.
func pretty(r *http.Request) bool {
	if p := r.URL.Query().Get("pretty"); p != "" {
		ok, _ := strconv.ParseBool(p)
		return ok
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}

// document is a plain discovery document.
type document interface {
	runtime.Object
	Marshal() ([]byte, error)
}

// serve writes doc, which announces itself as of apiVersion, in the form the client asked for.
func serve(w http.ResponseWriter, r *http.Request, doc document, apiVersion string) {
	f, ok := negotiate(r, allowPlain)
	if !ok {
		notAcceptable(w)
		return
	}
	body, err := encode(doc, apiVersion, f)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", f.mediaType)
	w.WriteHeader(http.StatusOK)
	w.Write(body)
}

func encode(doc document, apiVersion string, f form) ([]byte, error) {
	kind := strings.TrimPrefix(fmt.Sprintf("%T", doc), "*v1.")
	if f.mediaType == protobufType {
		raw, err := doc.Marshal()
		if err != nil {
			return nil, fmt.Errorf("encode %s: %w", kind, err)
		}
		return wrapProto(raw, apiVersion, kind)
	}
	doc.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	body, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", kind, err)
	}
	return formatJSON(append(body, '\n'), f)
}

// formatJSON turns a line of JSON into what f wants.
func formatJSON(body []byte, f form) ([]byte, error) {
	switch {
	case f.mediaType == yamlType:
		return yaml.JSONToYAML(body)
	case f.pretty:
		var out bytes.Buffer
		err := json.Indent(&out, bytes.TrimSuffix(body, []byte("\n")), "", "  ")
		return out.Bytes(), err
	default:
		return body, nil
	}
}

// wrapProto puts raw into the envelope of Kubernetes' protobuf
// (https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding).
func wrapProto(raw []byte, apiVersion, kind string) ([]byte, error) {
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: raw}
	body, err := unknown.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", kind, err)
	}
	return append([]byte("k8s\x00"), body...), nil
}

func notAcceptable(w http.ResponseWriter) {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Code:     http.StatusNotAcceptable,
		Reason:   metav1.StatusReasonNotAcceptable,
		Message:  "only the following media types are accepted: " + strings.Join([]string{jsonType, yamlType, protobufType}, ", "),
	}
	body, err := json.MarshalIndent(status, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(http.StatusNotAcceptable)
	w.Write(body)
}
