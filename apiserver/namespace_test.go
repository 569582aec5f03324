package apiserver_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// deadService is an APIService whose Service does not exist.
const deadService = `{"metadata":{"name":"v1.dead.example.com"},"spec":{"group":"dead.example.com","version":"v1","groupPriorityMinimum":1000,
	"versionPriority":15,"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"none"}}}`

func post(t *testing.T, s *apiserver.Server, path, text string) {
	t.Helper()
	resp, err := client(t, s).Post(s.URL()+path, "application/json", strings.NewReader(text))
	body(t, resp, err, http.StatusCreated)
}

// patch sends a patch with a media type such as merge-patch+json and returns the body of the response.
func patch(t *testing.T, s *apiserver.Server, path, kind, text string, status int) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, s.URL()+path, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/"+kind)
	resp, err := client(t, s).Do(req)
	return body(t, resp, err, status)
}

func remove(t *testing.T, s *apiserver.Server, path string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, s.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client(t, s).Do(req)
	body(t, resp, err, http.StatusOK)
}

// until polls path until the response has the given status and its body contains text.
func until(t *testing.T, s *apiserver.Server, path string, status int, text string) {
	t.Helper()
	last := ""
	for range 300 {
		resp, err := client(t, s).Get(s.URL() + path)
		if err != nil {
			t.Fatal(err)
		}
		if last = body(t, resp, nil, resp.StatusCode); resp.StatusCode == status && strings.Contains(last, text) {
			return
		}
		<-time.After(50 * time.Millisecond)
	}
	t.Fatalf("%s does not become %d with %q: %s", path, status, text, last)
}

// deleteNamespace creates and deletes a namespace.
func deleteNamespace(t *testing.T, s *apiserver.Server, name string) {
	t.Helper()
	post(t, s, "/api/v1/namespaces", `{"metadata":{"name":"`+name+`"}}`)
	remove(t, s, "/api/v1/namespaces/"+name)
}

// awaitEnd waits until a namespace is deleted.
func awaitEnd(t *testing.T, s *apiserver.Server, name string) {
	t.Helper()
	until(t, s, "/api/v1/namespaces/"+name, http.StatusNotFound, "")
}

// TestNamespaceOfServiceNeverAvailable checks that the deletion of a namespace does not wait for an APIService that has
// never been available, also after a restart (CRD-031).
func TestNamespaceOfServiceNeverAvailable(t *testing.T) {
	dir := t.TempDir()
	s := start(t, apiserver.Config{DataDir: dir})
	post(t, s, apiServices, deadService)
	until(t, s, apiServices+"/v1.dead.example.com", http.StatusOK, `"ServiceNotFound"`)
	deleteNamespace(t, s, "a")
	awaitEnd(t, s, "a")
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	s = start(t, apiserver.Config{DataDir: dir})
	deleteNamespace(t, s, "b")
	awaitEnd(t, s, "b")
}

// TestNamespaceOfServiceInPlaceOfCRD checks that the deletion of a namespace waits for an unavailable APIService if a
// CRD defines the same group and version. The CRD's objects are served again after the APIService is deleted (CRD-031).
func TestNamespaceOfServiceInPlaceOfCRD(t *testing.T) {
	s := start(t, apiserver.Config{})
	post(t, s, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		`{"metadata":{"name":"things.dead.example.com"},"spec":{"group":"dead.example.com",
		"scope":"Namespaced","names":{"plural":"things","kind":"Thing"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`)
	until(t, s, apiServices+"/v1.dead.example.com", http.StatusOK, `"Local"`)
	post(t, s, "/api/v1/namespaces", `{"metadata":{"name":"a"}}`)
	until(t, s, "/apis/dead.example.com/v1/namespaces/a/things", http.StatusOK, "")
	post(t, s, "/apis/dead.example.com/v1/namespaces/a/things",
		`{"apiVersion":"dead.example.com/v1","kind":"Thing","metadata":{"name":"x"}}`)
	patch(t, s, apiServices+"/v1.dead.example.com", "merge-patch+json",
		`{"spec":{"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"none"}}}`, http.StatusOK)
	until(t, s, apiServices+"/v1.dead.example.com", http.StatusOK, `"ServiceNotFound"`)
	remove(t, s, "/api/v1/namespaces/a")
	until(t, s, "/api/v1/namespaces/a", http.StatusOK, "waiting for APIService v1.dead.example.com")
	remove(t, s, apiServices+"/v1.dead.example.com")
	awaitEnd(t, s, "a")
	until(t, s, "/apis/dead.example.com/v1/things", http.StatusOK, `"items":[]`)
}

// TestNamespaceOfServiceNoLongerAvailable checks the deletion of a namespace while an aggregated API server is
// unavailable. The deletion does not wait if the server's resources did not support deletion when it was last
// available. Otherwise it deletes all other objects and waits. The namespace's condition and an Event name the
// APIService. The deletion ends after the APIService is deleted (CRD-031).
func TestNamespaceOfServiceNoLongerAvailable(t *testing.T) {
	for verbs, waits := range map[string]bool{`["list","watch"]`: false, `["list","deletecollection"]`: true,
		`["delete"]`: true} {
		t.Run(verbs, func(t *testing.T) {
			dir := t.TempDir()
			c := apiserver.Config{DataDir: t.TempDir(), LocalServices: []string{"default/server"}}
			c.Authentication.RequestHeader.CAFile = filepath.Join(dir, "front-proxy-ca.crt")
			c.Aggregation.ProxyClientCertFile = filepath.Join(dir, "front-proxy-client.crt")
			c.Aggregation.ProxyClientKeyFile = filepath.Join(dir, "front-proxy-client.key")
			keys, err := pki.Ensure(dir, nil, time.Now())
			if err != nil {
				t.Fatal(err)
			}
			s := start(t, c)
			e := newAggregatedServer(t, "a.example.com", keys.ProxyCAPEM, "X-Remote-User")
			e.verbs = verbs
			e.register(t, s)
			e.Close()
			until(t, s, apiServices+"/v1.a.example.com", http.StatusOK, `"status":"False"`)
			post(t, s, "/api/v1/namespaces", `{"metadata":{"name":"a"}}`)
			post(t, s, "/api/v1/namespaces/a/configmaps", `{"metadata":{"name":"x"}}`)
			remove(t, s, "/api/v1/namespaces/a")
			if !waits {
				awaitEnd(t, s, "a")
				return
			}
			const wait = "waiting for APIService v1.a.example.com: make its API server available, or delete the " +
				"APIService"
			until(t, s, "/api/v1/namespaces/a", http.StatusOK, wait)
			until(t, s, "/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3Da", http.StatusOK, wait)
			until(t, s, "/api/v1/namespaces/a/configmaps", http.StatusOK, `"items":[]`)
			if err := s.Shutdown(); err != nil {
				t.Fatal(err)
			}
			s = start(t, c)
			deleteNamespace(t, s, "b")
			until(t, s, "/api/v1/namespaces/b", http.StatusOK, wait)
			remove(t, s, apiServices+"/v1.a.example.com")
			awaitEnd(t, s, "a")
			awaitEnd(t, s, "b")
		})
	}
}
