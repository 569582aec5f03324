package apiserver_test

import (
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// TestAggregatedAPIMetrics checks the metrics of requests to an aggregated API. Requests that fail because the API is
// unavailable are counted as by kube-apiserver. Requests that the aggregated API server answers are not counted,
// because that server counts them itself. Requests in flight are counted in both cases.
func TestAggregatedAPIMetrics(t *testing.T) {
	dir := t.TempDir()
	keys, err := pki.Ensure(dir, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := apiserver.Config{LocalServices: []string{"default/server"}}
	c.Authentication.RequestHeader.CAFile = filepath.Join(dir, "front-proxy-ca.crt")
	c.Aggregation.ProxyClientCertFile = filepath.Join(dir, "front-proxy-client.crt")
	c.Aggregation.ProxyClientKeyFile = filepath.Join(dir, "front-proxy-client.key")
	s := start(t, c)
	e := newAggregatedServer(t, "a.example.com", keys.ProxyCAPEM, "X-Remote-User")
	e.register(t, s)
	metrics := func() []string {
		resp, err := client(t, s).Get(s.URL() + "/metrics")
		return strings.Split(body(t, resp, err, http.StatusOK), "\n")
	}
	expect := func(lines ...string) {
		t.Helper()
		now := metrics()
		for _, line := range lines {
			if !slices.Contains(now, line) {
				t.Errorf("metrics lack %s", line)
				t.Log(slices.DeleteFunc(slices.Clone(now), func(l string) bool {
					return strings.HasPrefix(l, "#") ||
						l[:min(len(l), 9)] != line[:9]
				}))
			}
		}
	}
	const things = "/apis/a.example.com/v1/namespaces/default/things"
	resp, err := client(t, s).Get(s.URL() + things)
	body(t, resp, err, http.StatusOK)
	watch, err := client(t, s).Get(s.URL() + things + "?watch=1")
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	write, err := client(t, s).Post(s.URL()+things, "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer write.Body.Close()
	expect(`aggregator_unavailable_apiservice{name="v1.a.example.com"} 0`)
	for tried, want := 0, []string{`apiserver_current_inflight_requests{request_kind="mutating"} 1`,
		`apiserver_current_inflight_requests{request_kind="readOnly"} 1`}; ; tried++ {
		now := metrics() // the server's own controllers may send such requests as well
		if slices.Contains(now, want[0]) && slices.Contains(now, want[1]) {
			break
		}
		if tried == 1000 {
			t.Fatalf("metrics lack %v", want)
		}
	}
	e.CloseClientConnections()
	e.Close()
	for status := 0; status != http.StatusServiceUnavailable; {
		resp, err := client(t, s).Get(s.URL() + things)
		if err != nil {
			t.Fatal(err)
		}
		response, err := io.ReadAll(resp.Body)
		if resp.Body.Close(); err == nil && string(response) == "service unavailable\n" {
			status = resp.StatusCode
		}
	}
	resp, err = client(t, s).Get(s.URL() + strings.TrimSuffix(things, "s") + "/made-up")
	body(t, resp, err, http.StatusServiceUnavailable)
	expect(`aggregator_unavailable_apiservice{name="v1.a.example.com"} 1`,
		`aggregator_unavailable_apiservice_total{name="v1.a.example.com",reason="FailedDiscoveryCheck"} 1`,
		`apiserver_request_terminations_total{code="503",component="aggregator",group="a.example.com",resource="things",scope="namespace",subresource="",verb="LIST",version="v1"} 1`,
		`apiserver_request_terminations_total{code="503",component="aggregator",group="a.example.com",resource="",scope="resource",subresource="",verb="GET",version="v1"} 1`)
	for _, line := range metrics() {
		if strings.HasPrefix(line, "apiserver_request_total") && strings.Contains(line, "a.example.com") {
			t.Errorf("a request to the other server is counted here: %s", line)
		}
	}
	req, err := http.NewRequest(http.MethodDelete,
		s.URL()+"/apis/apiregistration.k8s.io/v1/apiservices/v1.a.example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err = client(t, s).Do(req)
	body(t, resp, err, http.StatusOK)
	for _, line := range metrics() {
		if strings.HasPrefix(line, "aggregator_unavailable") {
			t.Errorf("not removed: %s", line)
		}
	}
}
