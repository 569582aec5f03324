package webhook_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/testserver"
)

type tree = map[string]any

const (
	widgets  = "/apis/example.com/v1/namespaces/default/widgets"
	widgets2 = "/apis/example.com/v2/namespaces/default/widgets"
	crds     = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// widgetCRD has different defaults at each version, and both subresources.
const widgetCRD = `{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},"versions":[
{"name":"v1","served":true,"storage":true,"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}},
"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"color":{"type":"string"},"replicas":{"type":"integer"},
"box":{"type":"object","properties":{"one":{"type":"string","default":"from v1"},"two":{"type":"string"}}}}},"status":{"type":"object","properties":{"phase":{"type":"string"},"replicas":{"type":"integer"}}}}}}},
{"name":"v2","served":true,"storage":false,"subresources":{"status":{}},
"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"color":{"type":"string"},"replicas":{"type":"integer"},
"box":{"type":"object","properties":{"one":{"type":"string"},"two":{"type":"string","default":"from v2"}}}}},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`

// handler responds to a webhook request with the given body.
type handler func(w http.ResponseWriter, r *http.Request, body []byte)

// fixture is an API server with the kind Widget, and a webhook server with a handler for each path.
type fixture struct {
	testing.TB
	client *http.Client
	url    string
	hooks  *httptest.Server

	mu       sync.Mutex
	seen     []tree // the requests in AdmissionReviews, in order of arrival
	handlers map[string]handler
}

func newFixture(t testing.TB, options ...testserver.Option) *fixture {
	server := testserver.Start(t, append(options, testserver.LocalServices("default/hook"))...)
	client, err := rest.HTTPClientFor(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	fx := &fixture{TB: t, client: client, url: server.Config.Host, handlers: map[string]handler{}}
	fx.hooks = httptest.NewTLSServer(fx)
	t.Cleanup(fx.hooks.Close)
	fx.must("POST", crds, widgetCRD)
	return fx
}

// ServeHTTP serves the webhooks. A webhook without a handler allows all requests.
func (fx *fixture) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		fx.Error(err)
	}
	var review tree
	if err := json.Unmarshal(body, &review); err != nil {
		fx.Errorf("%s: %v", body, err)
	}
	request, _ := review["request"].(tree)
	request["path"] = r.URL.String()
	fx.mu.Lock()
	fx.seen = append(fx.seen, request)
	h := fx.handlers[strings.TrimPrefix(r.URL.Path, "/")]
	fx.mu.Unlock()
	if h == nil {
		h = respond(admissionv1.AdmissionResponse{Allowed: true})
	}
	h(w, r, body)
}

// respond returns a handler that sends the response a, in an AdmissionReview of the version that it has received.
func respond(a admissionv1.AdmissionResponse) handler {
	return func(w http.ResponseWriter, _ *http.Request, body []byte) {
		var review admissionv1.AdmissionReview
		_ = json.Unmarshal(body, &review)
		a := a
		a.UID = review.Request.UID
		review.Request, review.Response = nil, &a
		_ = json.NewEncoder(w).Encode(review)
	}
}

func deny(message string) handler {
	return respond(admissionv1.AdmissionResponse{Result: &metav1.Status{Message: message}})
}

func patch(operations string) handler {
	return respond(admissionv1.AdmissionResponse{
		Allowed: true, Patch: []byte(operations), PatchType: new(admissionv1.PatchTypeJSONPatch),
	})
}

// handle sets the handler of a path.
func (fx *fixture) handle(path string, h handler) {
	fx.mu.Lock()
	defer fx.mu.Unlock()
	fx.handlers[path] = h
}

// take returns the requests that the webhooks have received since the last call.
func (fx *fixture) take() []tree {
	fx.mu.Lock()
	defer fx.mu.Unlock()
	seen := fx.seen
	fx.seen = nil
	return seen
}

// calledPaths returns the paths of the webhook calls since the last call of take or calledPaths.
func (fx *fixture) calledPaths() string {
	var all []string
	for _, s := range fx.take() {
		path, _, _ := strings.Cut(s["path"].(string), "?")
		all = append(all, strings.TrimPrefix(path, "/"))
	}
	return strings.Join(all, " ")
}

func (fx *fixture) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: fx.hooks.Certificate().Raw})
}

const (
	mutatings   = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
	validatings = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
)

// hook returns the webhook NAME.example.com at the path NAME, for all writes of Widgets at v1. fields override its
// fields.
func (fx *fixture) hook(name string, fields tree) tree {
	h := tree{
		"name": name + ".example.com", "sideEffects": "None", "admissionReviewVersions": []any{"v1"},
		"clientConfig": tree{"url": fx.hooks.URL + "/" + name, "caBundle": fx.ca()},
		"rules":        []any{rule("*", "example.com", "v1", "widgets")},
	}
	maps.Copy(h, fields)
	return h
}

func rule(operation, group, version, resource string) tree {
	return tree{
		"operations": []any{operation}, "apiGroups": []any{group}, "apiVersions": []any{version}, "resources": []any{
			resource,
		},
	}
}

// configure creates a webhook configuration, which is deleted when the test t ends.
func (fx *fixture) configure(t testing.TB, collection, name string, hooks ...tree) {
	t.Helper()
	fx.must("POST", collection, text(tree{"metadata": tree{"name": name}, "webhooks": hooks}))
	t.Cleanup(func() { fx.must("DELETE", collection+"/"+name, "") })
}

func text(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(out)
}

// reply is the response of the API server.
type reply struct {
	code     int
	body     tree
	warnings []string
}

func (r reply) String() string { return text(r.body) }

// at returns the value at a dotted path of the body.
func (r reply) at(path string) any { return at(r.body, path) }

func at(t tree, path string) any {
	var v any = t
	for name := range strings.SplitSeq(path, ".") {
		inner, _ := v.(tree)
		v = inner[name]
	}
	return v
}

func (fx *fixture) do(method, path, body string) (out reply) {
	fx.Helper()
	r, err := http.NewRequestWithContext(context.WithoutCancel(fx.Context()), method, fx.url+path,
		bytes.NewReader([]byte(body)))
	if err != nil {
		fx.Fatal(err)
	}
	if method == "PATCH" {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := fx.client.Do(r)
	if err != nil {
		fx.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&out.body); err != nil {
		fx.Fatal(err)
	}
	out.code = resp.StatusCode
	for _, line := range resp.Header.Values("Warning") {
		_, quoted, _ := strings.Cut(line, `"`)
		out.warnings = append(out.warnings, strings.TrimSuffix(quoted, `"`))
	}
	return out
}

// must sends a request that must succeed.
func (fx *fixture) must(method, path, body string) reply {
	fx.Helper()
	out := fx.do(method, path, body)
	if out.code >= 300 {
		fx.Fatalf("%s %s: %d %s", method, path, out.code, out)
	}
	return out
}

// mustFail sends a request that must fail with a code and a message.
func (fx *fixture) mustFail(t testing.TB, method, path, body string, code int, message string) {
	t.Helper()
	out := fx.do(method, path, body)
	if out.code != code || !strings.Contains(out.at("message").(string), message) {
		t.Errorf("%s %s: got %d %s\nwant %d %s", method, path, out.code, out, code, message)
	}
}

func widget(name, spec string) string {
	return `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"` + name + `"},"spec":` + spec + `}`
}

// serve starts an additional webhook server with the given certificate, and returns its port.
func (fx *fixture) serve(certificate tls.Certificate) int {
	s := httptest.NewUnstartedServer(fx)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	s.StartTLS()
	fx.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).Port
}

func certificateOf(t *testing.T, name string) (tls.Certificate, []byte) {
	t.Helper()
	keys, err := pki.Ensure("", []string{name}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return keys.Serving, keys.CAPEM
}
