package api

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/conversion"
)

// The metrics of a kind go with it, also those of requests that end after it; others stay.
func TestMetricsGoWithTheirKinds(t *testing.T) {
	h := withCronTabs(t)
	const crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/crontabs.stable.example.com"
	v := h.server.live.Load().Find("stable.example.com", "v1", "crontabs")
	used := func() {
		h.server.ObserveConversion(conversion.Call{CRD: "crontabs.stable.example.com", From: "v1", To: "v1beta1", Duration: time.Second})
	}
	h.want(200, "GET", crontabs, "")
	h.want(200, "GET", crontabs+"/a", "")
	h.want(200, "GET", strings.Replace(crontabs, "/v1/", "/v1beta1/", 1)+"/a", "")
	h.want(200, "GET", crontabs+"?watch=1&timeoutSeconds=1", "")
	h.want(200, "GET", "/api/v1/namespaces/default", "")
	used()
	text := h.do("GET", "/metrics", "").Body.String()
	for _, name := range []string{"apiserver_request_total", "apiserver_request_duration_seconds_sum", "apiserver_response_sizes_sum",
		"apiserver_longrunning_requests", "apiserver_watch_events_total", "apiserver_requested_deprecated_apis", "apiserver_crd_conversion_webhook_duration_seconds_sum"} {
		found := false
		for line := range strings.Lines(text) {
			found = found || strings.HasPrefix(line, name+"{") && strings.Contains(line, "crontabs")
		}
		if !found {
			t.Errorf("%s says nothing of the kind", name)
		}
	}

	h.want(200, "DELETE", crontabs, "")
	h.want(200, "DELETE", crd, "")
	h.do("PATCH", crd, `{"metadata":{"finalizers":null}}`, "Content-Type: application/merge-patch+json")
	h.want(404, "GET", crd, "")
	if _, err := h.server.live.Current(context.Background()); err != nil {
		t.Fatal(err)
	}
	used()
	late := seriesKey{group: "stable.example.com", version: "v1", plural: "crontabs", verb: verbGet, code: 200, named: true, namespaced: true}
	h.server.metrics.seriesFor(late, v).requests.Inc()
	for line := range strings.Lines(h.do("GET", "/metrics", "").Body.String()) {
		if strings.Contains(line, "crontabs") {
			t.Errorf("is still there: %s", line)
		}
	}
	for k := range h.server.metrics.series {
		if k.plural == "crontabs" {
			t.Errorf("is still kept: %+v", k)
		}
	}
	if text := h.do("GET", "/metrics", "").Body.String(); !strings.Contains(text, `resource="namespaces"`) {
		t.Error("the metrics of other kinds have gone too")
	}
}
