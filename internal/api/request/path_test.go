package request

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
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
		var p Path
		p.Parse(method, urlPath)
		if urlPath == "" || urlPath[0] != '/' || strings.HasPrefix(urlPath, "//") {
			return // upstream's parser accepts such paths, but upstream's router does not
		}
		info, err := upstream.NewRequestInfo(&http.Request{Method: method, URL: &url.URL{Path: urlPath}})
		if err != nil || info.Verb == "proxy" || p.Invalid || !p.Resource && !info.IsResourceRequest {
			return
		}
		want := Path{
			Verb: info.Verb, Resource: info.IsResourceRequest, Group: info.APIGroup, Version: info.APIVersion,
			Namespace: info.Namespace, Plural: info.Resource, Name: info.Name, Subresource: info.Subresource,
			EmptyNamespace: p.EmptyNamespace, WatchPrefix: p.WatchPrefix,
		}
		if p != want {
			t.Errorf("%s %q:\n got %+v\nwant %+v", method, urlPath, p, want)
		}
	})
}
