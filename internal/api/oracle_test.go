package api

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// FuzzPath compares the parsed path of a request with upstream's RequestInfo (CRD-002).
func FuzzPath(f *testing.F) {
	for _, p := range []string{
		"/api/v1/namespaces/default/configmaps/x", "/apis/g/v1/namespaces/n/p/x/status", "/apis/g/v1/p",
		"/api/v1/namespaces/x/finalize",
		"/api/v1/watch/namespaces/n/p/x", "/apis/g/v1", "/api", "//api/v1/x", "/api/v1//x", "/apis/g/v/namespaces//p",
		"/healthz", "/api/v1/watch", "/apis//v/p",
		"/api/v1/namespaces/..", "/apis/g/v/p/x/", "/a/b/c/d/e/f/g/h/i/j/k",
	} {
		f.Add("GET", p)
		f.Add("DELETE", p)
	}
	f.Add("POST", "/api/v1/pods")
	upstream := apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"),
		GrouplessAPIPrefixes: sets.NewString("api")}
	f.Fuzz(func(t *testing.T, method, urlPath string) {
		var p path
		p.parse(method, urlPath)
		if urlPath == "" || urlPath[0] != '/' || strings.HasPrefix(urlPath, "//") {
			return // upstream's parser accepts such paths, but upstream's router does not
		}
		info, err := upstream.NewRequestInfo(&http.Request{Method: method, URL: &url.URL{Path: urlPath}})
		if err != nil || info.Verb == "proxy" || p.invalid || !p.resource && !info.IsResourceRequest {
			return
		}
		want := path{
			verb: info.Verb, resource: info.IsResourceRequest, group: info.APIGroup, version: info.APIVersion,
			namespace: info.Namespace, plural: info.Resource, name: info.Name, subresource: info.Subresource,
			emptyNamespace: p.emptyNamespace, watchPrefix: p.watchPrefix,
		}
		if p != want {
			t.Errorf("%s %q:\n got %+v\nwant %+v", method, urlPath, p, want)
		}
	})
}

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
	all := offers(false)
	f.Fuzz(func(t *testing.T, header string, builtin bool) {
		v := &resource.Version{Columns: make([]resource.Column, 1)}
		if builtin {
			v.Type = &resource.GoType{}
		}
		got, ok := negotiate(header, all, v)
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
		names := map[view]string{viewObject: "", viewTable: "Table", viewPartial: "PartialObjectMetadata",
			viewPartialList: "PartialObjectMetadataList"}
		if got.media != want.Accepted.MediaType || names[got.view] != kind || got.pretty != want.Pretty {
			t.Errorf("%q: got %+v, want %v %q as upstream", header, got, want.Accepted.MediaType, kind)
		}
	})
}

// FuzzOptions sends list requests with arbitrary queries. It checks that the server neither panics nor returns 500
// (CRD-067).
func FuzzOptions(f *testing.F) {
	for _, q := range []string{
		"", "labelSelector=a%3Db", "fieldSelector=metadata.name%3Da", "limit=1", "limit=-1&continue=x",
		"resourceVersion=1&resourceVersionMatch=Exact", "resourceVersion=x",
		"labelSelector=a+in+(b,c)", "timeoutSeconds=1",
		"limit=1&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiJhXHUwMDAwIn0", "watch=0", "pretty=maybe",
		"timeout=1s", "a=%", "includeObject=Nothing", "sendInitialEvents=true",
	} {
		f.Add(q)
	}
	h := withCronTabs(f)
	f.Fuzz(func(t *testing.T, query string) {
		r := newRequest("GET", crontabs, "")
		r.URL.RawQuery = query
		if v, ok := r.URL.Query()["watch"]; ok && v[0] != "0" && v[0] != "false" {
			return
		}
		w := serve(h, r)
		if w.Code >= 500 && w.Code != http.StatusGatewayTimeout {
			t.Errorf("query %q: got %d %s, want a code below 500", query, w.Code, w.Body)
		}
	})
}
