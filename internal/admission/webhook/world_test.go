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

// widgetCRD has a default at each version, and both subresources.
const widgetCRD = `{"metadata":{"name":"widgets.example.com"},"spec":{"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","kind":"Widget"},"versions":[
{"name":"v1","served":true,"storage":true,"subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}},
"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"color":{"type":"string"},"replicas":{"type":"integer"},
"box":{"type":"object","properties":{"one":{"type":"string","default":"from v1"},"two":{"type":"string"}}}}},"status":{"type":"object","properties":{"phase":{"type":"string"},"replicas":{"type":"integer"}}}}}}},
{"name":"v2","served":true,"storage":false,"subresources":{"status":{}},
"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"color":{"type":"string"},"replicas":{"type":"integer"},
"box":{"type":"object","properties":{"one":{"type":"string"},"two":{"type":"string","default":"from v2"}}}}},"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`

// world is a server with the kind Widget, and a server of webhooks which answer by their paths.
type world struct {
	testing.TB
	client *http.Client
	url    string
	hooks  *httptest.Server

	mu   sync.Mutex
	seen []tree // the requests of AdmissionReviews, in the order in which they came
	does map[string]func(http.ResponseWriter, *http.Request, []byte)
}

func newWorld(t testing.TB) *world {
	server := testserver.Start(t, testserver.LocalServices("default/hook"))
	client, err := rest.HTTPClientFor(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, client: client, url: server.Config.Host, does: map[string]func(http.ResponseWriter, *http.Request, []byte){}}
	w.hooks = httptest.NewTLSServer(w)
	t.Cleanup(w.hooks.Close)
	w.must("POST", crds, widgetCRD)
	return w
}

// ServeHTTP is the webhooks. One that nothing is said of allows all.
func (w *world) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		w.Error(err)
	}
	var review tree
	if err := json.Unmarshal(body, &review); err != nil {
		w.Errorf("%s: %v", body, err)
	}
	request, _ := review["request"].(tree)
	request["path"] = r.URL.String()
	w.mu.Lock()
	w.seen = append(w.seen, request)
	does := w.does[strings.TrimPrefix(r.URL.Path, "/")]
	w.mu.Unlock()
	if does == nil {
		does = answer(admissionv1.AdmissionResponse{Allowed: true})
	}
	does(to, r, body)
}

// answer answers the version that was asked.
func answer(a admissionv1.AdmissionResponse) func(http.ResponseWriter, *http.Request, []byte) {
	return func(to http.ResponseWriter, _ *http.Request, body []byte) {
		var review admissionv1.AdmissionReview
		_ = json.Unmarshal(body, &review)
		a := a
		a.UID = review.Request.UID
		review.Request, review.Response = nil, &a
		_ = json.NewEncoder(to).Encode(review)
	}
}

func deny(message string) func(http.ResponseWriter, *http.Request, []byte) {
	return answer(admissionv1.AdmissionResponse{Result: &metav1.Status{Message: message}})
}

func patch(operations string) func(http.ResponseWriter, *http.Request, []byte) {
	return answer(admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(operations), PatchType: new(admissionv1.PatchTypeJSONPatch)})
}

// on says what the webhook of a path answers from now on.
func (w *world) on(path string, does func(http.ResponseWriter, *http.Request, []byte)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.does[path] = does
}

// take returns what the webhooks have been asked since the last time.
func (w *world) take() []tree {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := w.seen
	w.seen = nil
	return seen
}

// paths are those at which the webhooks have been asked since the last time.
func (w *world) paths() string {
	var all []string
	for _, s := range w.take() {
		path, _, _ := strings.Cut(s["path"].(string), "?")
		all = append(all, strings.TrimPrefix(path, "/"))
	}
	return strings.Join(all, " ")
}

func (w *world) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.hooks.Certificate().Raw})
}

const (
	mutatings   = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
	validatings = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
)

// hook is a webhook NAME.example.com at a path of that name, about all writes of Widgets at v1 but for what with says.
func (w *world) hook(name string, with tree) tree {
	h := tree{
		"name": name + ".example.com", "sideEffects": "None", "admissionReviewVersions": []any{"v1"},
		"clientConfig": tree{"url": w.hooks.URL + "/" + name, "caBundle": w.ca()},
		"rules":        []any{about("*", "example.com", "v1", "widgets")},
	}
	maps.Copy(h, with)
	return h
}

func about(operation, group, version, resource string) tree {
	return tree{"operations": []any{operation}, "apiGroups": []any{group}, "apiVersions": []any{version}, "resources": []any{resource}}
}

// configure makes a configuration of webhooks, and deletes it at the end of the test of t.
func (w *world) configure(t testing.TB, collection, name string, hooks ...tree) {
	t.Helper()
	w.must("POST", collection, text(tree{"metadata": tree{"name": name}, "webhooks": hooks}))
	t.Cleanup(func() { w.must("DELETE", collection+"/"+name, "") })
}

func text(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(out)
}

// reply is what the server has answered.
type reply struct {
	code     int
	body     tree
	warnings []string
}

func (r reply) String() string { return text(r.body) }

// at is the value at a dotted path of the answer.
func (r reply) at(path string) any { return at(r.body, path) }

func at(t tree, path string) any {
	var v any = t
	for name := range strings.SplitSeq(path, ".") {
		inner, _ := v.(tree)
		v = inner[name]
	}
	return v
}

func (w *world) do(method, path, body string) (out reply) {
	w.Helper()
	r, err := http.NewRequestWithContext(context.WithoutCancel(w.Context()), method, w.url+path, bytes.NewReader([]byte(body)))
	if err != nil {
		w.Fatal(err)
	}
	if method == "PATCH" {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := w.client.Do(r)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&out.body); err != nil {
		w.Fatal(err)
	}
	out.code = resp.StatusCode
	for _, line := range resp.Header.Values("Warning") {
		_, quoted, _ := strings.Cut(line, `"`)
		out.warnings = append(out.warnings, strings.TrimSuffix(quoted, `"`))
	}
	return out
}

// must is a request that succeeds.
func (w *world) must(method, path, body string) reply {
	w.Helper()
	out := w.do(method, path, body)
	if out.code >= 300 {
		w.Fatalf("%s %s: %d %s", method, path, out.code, out)
	}
	return out
}

// refused is a request that fails with a message.
func (w *world) refused(t testing.TB, method, path, body string, code int, message string) {
	t.Helper()
	out := w.do(method, path, body)
	if out.code != code || !strings.Contains(out.at("message").(string), message) {
		t.Errorf("%s %s: got %d %s\nwant %d %s", method, path, out.code, out, code, message)
	}
}

func widget(name, spec string) string {
	return `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"` + name + `"},"spec":` + spec + `}`
}

// serve has the webhooks behind another certificate, too, and returns the port.
func (w *world) serve(certificate tls.Certificate) int {
	s := httptest.NewUnstartedServer(w)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	s.StartTLS()
	w.Cleanup(s.Close)
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
