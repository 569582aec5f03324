package api

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/crd/conversion"
)

// TestMetricsOfDeletedKind checks that the metrics of a kind are removed with its CRD. This includes metrics of
// requests that end after the deletion. The metrics of other kinds remain.
func TestMetricsOfDeletedKind(t *testing.T) {
	h := withCronTabs(t)
	const crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/crontabs.stable.example.com"
	v := h.engine.Live.Load().Find("stable.example.com", "v1", "crontabs")
	observeConversion := func() {
		h.server.ObserveConversion(conversion.Call{CRD: "crontabs.stable.example.com", From: "v1", To: "v1beta1",
			Duration: time.Second})
	}
	h.want(200, "GET", crontabs, "")
	h.want(200, "GET", crontabs+"/a", "")
	h.want(200, "GET", strings.Replace(crontabs, "/v1/", "/v1beta1/", 1)+"/a", "")
	h.want(200, "GET", crontabs+"?watch=1&timeoutSeconds=1", "")
	h.want(200, "GET", "/api/v1/namespaces/default", "")
	observeConversion()
	text := h.do("GET", "/metrics", "").Body.String()
	for _, name := range []string{"apiserver_request_total", "apiserver_request_duration_seconds_sum",
		"apiserver_response_sizes_sum",
		"apiserver_longrunning_requests", "apiserver_watch_events_total", "apiserver_requested_deprecated_apis",
		"apiserver_crd_conversion_webhook_duration_seconds_sum"} {
		found := false
		for line := range strings.Lines(text) {
			found = found || strings.HasPrefix(line, name+"{") && strings.Contains(line, "crontabs")
		}
		if !found {
			t.Errorf("%s has no series for crontabs", name)
		}
	}

	h.want(200, "DELETE", crontabs, "")
	h.want(200, "DELETE", crd, "")
	h.do("PATCH", crd, `{"metadata":{"finalizers":null}}`, "Content-Type: application/merge-patch+json")
	h.want(404, "GET", crd, "")
	if _, err := h.engine.Live.Current(context.Background()); err != nil {
		t.Fatal(err)
	}
	observeConversion()
	late := &request.Request{Kind: v, Status: 200, Path: request.Path{Verb: request.VerbGet, Resource: true,
		Group: "stable.example.com", Version: "v1", Namespace: "default", Plural: "crontabs", Name: "a"}}
	h.server.metrics.Observe(late)
	for line := range strings.Lines(h.do("GET", "/metrics", "").Body.String()) {
		if strings.Contains(line, "crontabs") {
			t.Errorf("got the series %s after the deletion of its kind", line)
		}
	}
	if text := h.do("GET", "/metrics", "").Body.String(); !strings.Contains(text, `resource="namespaces"`) {
		t.Error("the metrics of other kinds were removed")
	}
}
