package api

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/access/rbac"
	"github.com/trellis-k8s/trellis/internal/api/discovery"
	"github.com/trellis-k8s/trellis/internal/api/openapi"
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/fixture"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// harness is a server over a fixture, with helpers that send requests as an administrator.
type harness struct {
	t      testing.TB
	server *Server
	engine *engine.Engine
}

// newHarness returns a harness that has the namespace default. Each function in change modifies the server's
// configuration.
func newHarness(t testing.TB, change ...func(*Config)) *harness {
	t.Helper()
	var env *fixture.Env
	roles := rbac.New(func() *storage.Snapshot { return env.Store.Head() })
	authorizer, err := access.Chain(access.Named("rbac", roles))
	if err != nil {
		t.Fatal(err)
	}
	env = fixture.Open(t, kinds.Config{Authorizer: authorizer, Rules: roles, RoleRules: rbac.Resolver{Index: roles}})
	c := Config{
		Engine: env.Engine,
		Authenticator: access.NewAuthenticator(access.Authentication{Anonymous: anonymous.NewAuthenticator(nil),
			Now: time.Now}),
		Authorizer: authorizer,
		Fairness: flowcontrol.New(flowcontrol.Config{MaxReads: 400, MaxWrites: 200,
			RequestTimeout: time.Minute}, env.Store.Head, clock.RealClock{}),
		Discovery: discovery.Handler(env.Live, nil, discovery.Addresses{Default: "192.0.2.1:6443"}),
		OpenAPI:   openapi.Handler(env.Live, nil),
	}
	for _, f := range change {
		f(&c)
	}
	h := &harness{t, New(c), c.Engine}
	h.want(http.StatusCreated, "POST", "/api/v1/namespaces",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"default"}}`)
	return h
}

const crontabCRD = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
"metadata":{"name":"crontabs.stable.example.com"},
"spec":{"group":"stable.example.com","scope":"Namespaced","names":{"plural":"crontabs","singular":"crontab",
"kind":"CronTab","shortNames":["ct"]},
"versions":[{"name":"v1","served":true,"storage":true,"subresources":{"status":{}},
"additionalPrinterColumns":[{"name":"Spec","type":"string","jsonPath":".spec.cronSpec"},{"name":"Replicas",
"type":"integer","jsonPath":".spec.replicas"},{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}],
"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object",
"properties":{"cronSpec":{"type":"string"},"image":{"type":"string"},"replicas":{"type":"integer"}}},
"status":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}},
{"name":"v1beta1","served":true,"storage":false,"deprecated":true,"schema":{"openAPIV3Schema":{"type":"object",
"x-kubernetes-preserve-unknown-fields":true}}}]}}`

const (
	crontabs = "/apis/stable.example.com/v1/namespaces/default/crontabs"
	crontabA = `{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"a"},
"spec":{"cronSpec":"* * * * */5","replicas":3}}`
)

// withCronTabs returns a harness with the CronTab kind of the Kubernetes documentation, and the CronTab a.
func withCronTabs(t testing.TB, change ...func(*Config)) *harness {
	t.Helper()
	h := newHarness(t, change...)
	h.want(http.StatusCreated, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crontabCRD)
	h.want(http.StatusCreated, "POST", crontabs, crontabA)
	return h
}

// newRequest returns a request of the administrator. Each header has the form "Name: value".
func newRequest(method, path, body string, headers ...string) *http.Request {
	r := httptest.NewRequest(method, "/", strings.NewReader(body))
	if body == "" {
		r.Body = http.NoBody
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		panic(err)
	}
	r.URL = u
	r.Header.Set("User-Agent", "tester/1.0")
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Set(name, value)
	}
	return r.WithContext(access.WithUser(r.Context(), access.Loopback()))
}

// do sends a request as the administrator and returns the response.
func (h *harness) do(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.server.ServeHTTP(w, newRequest(method, path, body, headers...))
	return w
}

// want sends a request and fails the test unless the response has the status code.
func (h *harness) want(code int, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	h.t.Helper()
	w := h.do(method, path, body, headers...)
	if w.Code != code {
		h.t.Fatalf("%s %s: got %d, want %d: %s", method, path, w.Code, code, w.Body)
	}
	return w
}

// wantText sends a request and checks the status code. It also checks that the body of the response contains the
// given text.
func (h *harness) wantText(code int, text, method, path, body string, headers ...string) {
	h.t.Helper()
	if got := h.want(code, method, path, body, headers...).Body.String(); !strings.Contains(got, text) {
		h.t.Errorf("%s %s: got %s, want it to contain %s", method, path, got, text)
	}
}

// message returns the message of a Status response, or the body of any other response.
func message(w *httptest.ResponseRecorder) string {
	var s struct{ Message string }
	if json.Unmarshal(w.Body.Bytes(), &s) != nil {
		return w.Body.String()
	}
	return s.Message
}

// wantError sends a request and compares the code and the message of the Status response.
func (h *harness) wantError(code int, want, method, path, body string, headers ...string) {
	h.t.Helper()
	w := h.do(method, path, body, headers...)
	if got := message(w); w.Code != code || got != want {
		h.t.Errorf("%s %s:\n got %d %q\nwant %d %q", method, path, w.Code, got, code, want)
	}
}

// tree decodes a JSON object.
func tree(t testing.TB, r io.Reader) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.NewDecoder(r).Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

// at returns the value at a path of a decoded JSON value. Strings are keys, integers are indexes. It returns nil if the
// path does not exist.
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(map[string]any)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

// fromCBOR decodes an object in CBOR.
func fromCBOR(w *httptest.ResponseRecorder) (v map[string]any, err error) {
	err = direct.Unmarshal(w.Body.Bytes(), &v)
	return v, err
}
