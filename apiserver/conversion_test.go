package apiserver_test

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/conversionwebhook"
	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/testserver"
)

// numberedWebhook is a conversion webhook behind the Service hook. It writes its current number into each converted
// object.
type numberedWebhook struct {
	*testing.T
	*httptest.Server
	number atomic.Int64
	client *http.Client // client of the API server at url
	url    string
}

const hostCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"hosts.example.com"},
"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"hosts","kind":"Host"},
"conversion":{"strategy":"Webhook","webhook":{"conversionReviewVersions":["v1"],"clientConfig":{"caBundle":%q,"service":{"namespace":"default","name":"hook","port":%d}}}},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}},
{"name":"v2","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","properties":{"by":{"type":"integer"}}}}}]}}`

// newNumberedWebhook starts a server that revalidates cached conversions at an interval, and a webhook that converts a
// Host from v1 to v2.
func newNumberedWebhook(t *testing.T, recheck time.Duration) *numberedWebhook {
	server := testserver.Start(t, testserver.LocalServices("default/hook"),
		testserver.With(func(c *apiserver.Config) { c.ConversionRecheck = recheck }))
	client, err := rest.HTTPClientFor(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	n := &numberedWebhook{T: t, client: client, url: server.Config.Host}
	kinds := map[schema.GroupKind]conversionwebhook.Func{
		{Group: "example.com", Kind: "Host"}: func(o *unstructured.Unstructured, _ string) (*unstructured.Unstructured,
			error) {
			o.Object["by"] = n.number.Load()
			return o, nil
		},
	}
	n.Server = httptest.NewUnstartedServer(&conversionwebhook.Handler{Kinds: kinds})
	certificate, ca := certificateOf(t, "hook.default.svc")
	n.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	n.StartTLS()
	t.Cleanup(n.Server.Close)
	n.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		fmt.Sprintf(hostCRD, base64.StdEncoding.EncodeToString(ca), n.Listener.Addr().(*net.TCPAddr).Port))
	n.send("POST", "/api/v1/namespaces/default/services",
		`{"metadata":{"name":"hook"},"spec":{"type":"ExternalName","externalName":"localhost"}}`)
	n.send("POST", "/apis/example.com/v1/namespaces/default/hosts",
		`{"apiVersion":"example.com/v1","kind":"Host","metadata":{"name":"h"}}`)
	return n
}

func certificateOf(t *testing.T, name string) (tls.Certificate, []byte) {
	t.Helper()
	keys, err := pki.Ensure("", []string{name}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return keys.Serving, keys.CAPEM
}

func (n *numberedWebhook) send(method, path, text string) string {
	n.Helper()
	req, err := http.NewRequestWithContext(n.Context(), method, n.url+path, strings.NewReader(text))
	if err != nil {
		n.Fatal(err)
	}
	status := http.StatusOK
	switch method {
	case "POST":
		status = http.StatusCreated
	case "PATCH":
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := n.client.Do(req)
	return body(n.T, resp, err, status)
}

// by reads the Host at v2. It returns the number that the webhook wrote into the Host.
func (n *numberedWebhook) by() string {
	n.Helper()
	_, after, _ := strings.Cut(n.send("GET", "/apis/example.com/v2/namespaces/default/hosts/h", ""), `"by":`)
	number, _, _ := strings.Cut(after, ",")
	return strings.TrimSuffix(strings.TrimSpace(number), "}")
}

// renumber increments the number of the webhook and returns the new number. It checks that the server still returns
// the cached conversion with the old number.
func (n *numberedWebhook) renumber() (want string) {
	n.Helper()
	before := n.by()
	want = fmt.Sprint(n.number.Add(1))
	if got := n.by(); got != before {
		n.Fatalf("got the conversion of webhook %s, want the cached one of %s", got, before)
	}
	return want
}

// await reads the Host until it contains the given number of the webhook. The server invalidates its cache
// asynchronously.
func (n *numberedWebhook) await(want string) {
	n.Helper()
	for began := time.Now(); n.by() != want; {
		if time.Since(began) > 20*time.Second {
			n.Fatalf("the conversion of webhook %s is not read in time", want)
		}
	}
}

// TestConversionCacheInvalidation checks which events invalidate the cached results of a conversion webhook: changes
// of spec.conversion of the CRD, of the webhook's Service and of its endpoints, and the loss of the connections to
// the webhook. (CNV-040 CNV-073)
func TestConversionCacheInvalidation(t *testing.T) {
	n := newNumberedWebhook(t, time.Hour)
	const crd, endpoints, slices = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/hosts.example.com",
		"/api/v1/namespaces/default/endpoints", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
	const slice = `{"metadata":{"name":"hook-1","labels":{"kubernetes.io/service-name":"hook"}},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.9"]}],"ports":[{"port":443}]}`
	for _, write := range [][]string{
		{"POST", slices, slice},
		{"PATCH", slices + "/hook-1", `{"endpoints":[{"addresses":["10.0.0.9"],"conditions":{"ready":false}}]}`},
		{"DELETE", slices + "/hook-1", ""},
		{"POST", endpoints, `{"metadata":{"name":"hook"},"subsets":[{"addresses":[{"ip":"10.0.0.9"}],"ports":[{"port":443}]}]}`},
		{"PATCH", "/api/v1/namespaces/default/services/hook", `{"metadata":{"labels":{"a":"b"}}}`},
		{"PATCH", crd, `{"spec":{"conversion":{"webhook":{"conversionReviewVersions":["v1","v1beta1"]}}}}`},
		{"PATCH", crd, `{"spec":{"conversion":{"strategy":"None","webhook":null}}}`}, // and back
	} {
		want := n.renumber()
		before := n.send("GET", crd, "")
		n.send(write[0], write[1], write[2])
		if strings.Contains(write[2], "None") {
			_, conversion, _ := strings.Cut(before, `"conversion":`)
			conversion, _, _ = strings.Cut(conversion, `,"group"`)
			n.send("PATCH", crd, `{"spec":{"conversion":`+conversion+`}}`)
		}
		if got := n.by(); got != want {
			t.Errorf("after %s: got the conversion of webhook %s, want %s", write, got, want)
		}
	}
	want := n.renumber()
	n.CloseClientConnections()
	n.await(want)
}

// TestConversionRevalidation checks that a cached conversion is replaced when the periodic revalidation gets another
// result.
func TestConversionRevalidation(t *testing.T) {
	n := newNumberedWebhook(t, time.Millisecond)
	n.by()
	n.number.Add(1)
	n.await("1")
}

// TestCircuitBreakerMetrics checks that metrics count the requests to conversion webhooks and show the open circuit
// breaker of an unreachable webhook. (CNV-059 CNV-074)
func TestCircuitBreakerMetrics(t *testing.T) {
	n := newNumberedWebhook(t, time.Hour)
	host := fmt.Sprintf("hook.default.svc:%d", n.Listener.Addr().(*net.TCPAddr).Port)
	shows := func(line string) {
		t.Helper()
		if metrics := n.send("GET", "/metrics", ""); !strings.Contains(metrics, "\n"+fmt.Sprintf(line, host)) {
			t.Errorf("metrics lack "+line, host)
		}
	}
	n.by()
	shows(`rest_client_requests_total{code="200",host=%q,method="POST"} 1`)
	shows(`trellis_egress_circuit_breakers{host=%q,name="conversion",state="closed"} 1`)
	n.Server.Close()
	for range 5 {
		n.send("PATCH", "/apis/example.com/v1/namespaces/default/hosts/h",
			fmt.Sprintf(`{"metadata":{"labels":{"a":"%d"}}}`, n.number.Add(1)))
		resp, err := n.client.Get(n.url + "/apis/example.com/v2/namespaces/default/hosts/h")
		body(n.T, resp, err, http.StatusInternalServerError)
	}
	shows(`trellis_egress_circuit_breakers{host=%q,name="conversion",state="closed"} 0`)
	shows(`rest_client_requests_total{code="<error>",host=%q,method="POST"}`)
}
