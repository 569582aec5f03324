package api

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/trellis-k8s/trellis/internal/access"
)

// TestFence checks a server that is no longer valid. It answers all requests that depend on kinds or roles with 503,
// and ends its watches. Metrics count these requests with the status 503. Health checks still work.
func TestFence(t *testing.T) {
	var invalid atomic.Bool
	h := newHarness(t, func(c *Config) {
		c.Valid = func() error {
			if invalid.Load() {
				return errors.New("no longer valid")
			}
			return nil
		}
	})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.server.ServeHTTP(w, r.WithContext(access.WithUser(r.Context(), access.Loopback())))
	}))
	defer s.Close()
	get := func(path string) *http.Response {
		t.Helper()
		resp, err := s.Client().Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	const watch = "/api/v1/namespaces?watch=1"
	running := get(watch)
	if running.StatusCode != http.StatusOK {
		t.Fatal(running.Status)
	}
	socket, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(s.URL, "http")+watch, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.Close() }()
	_ = socket.SetReadDeadline(time.Now().Add(30 * time.Second))
	invalid.Store(true)
	h.want(http.StatusServiceUnavailable, "POST", "/api/v1/namespaces",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"late"}}`)
	if events, _ := io.ReadAll(running.Body); strings.Contains(string(events), `"late"`) {
		t.Errorf("the watch has returned an event: %s", events)
	}
	for err == nil {
		var event []byte
		if _, event, err = socket.ReadMessage(); strings.Contains(string(event), `"late"`) {
			t.Errorf("the WebSocket watch has returned an event: %s", event)
		}
	}
	for _, path := range []string{"/api", "/apis", "/api/v1/namespaces/default", "/api/v1/namespaces", watch,
		"/openapi/v2", "/api/v1/unknown", "/", "/debug/pprof/heap", "/.well-known/openid-configuration"} {
		resp := get(path)
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" ||
			!strings.Contains(string(body), `"reason":"ServiceUnavailable"`) {
			t.Errorf("%s: got %s, %s, %v", path, resp.Status, body, err)
		}
	}
	for _, path := range []string{"/livez", "/livez/ping", "/readyz", "/healthz", "/version"} {
		if resp := get(path); resp.StatusCode == http.StatusServiceUnavailable {
			t.Errorf("%s: got %s", path, resp.Status)
		}
	}
	text, err := io.ReadAll(get("/metrics").Body)
	if err != nil || !strings.Contains(string(text), `apiserver_request_total{code="503"`) {
		t.Errorf("the metrics contain no request with the status 503: %v", err)
	}
}

// TestFenceIsOpened checks that an answer without data passes after the server has become invalid, and that nothing
// follows a 503.
func TestFenceIsOpened(t *testing.T) {
	invalid := false
	w := httptest.NewRecorder()
	f := &fence{ResponseWriter: w, valid: func() error {
		if invalid {
			return errors.New("no longer valid")
		}
		return nil
	}}
	for _, text := range []string{"a", "b", "c"} {
		if text == "c" {
			f.Open()
		}
		if _, err := f.Write([]byte(text)); (err != nil) != (text == "b") {
			t.Errorf("the write of %s returns %v", text, err)
		}
		invalid = true
	}
	if got := w.Body.String(); got != "ac" {
		t.Errorf("the response is %s, want ac", got)
	}
	w = httptest.NewRecorder()
	f = &fence{ResponseWriter: w, valid: f.valid}
	f.WriteHeader(http.StatusOK)
	f.Open()
	if _, err := f.Write([]byte("late")); err == nil || w.Code != http.StatusServiceUnavailable {
		t.Errorf("got %d %s, %v", w.Code, w.Body, err)
	}
}
