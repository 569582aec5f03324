package apiserver_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/authn"
	"github.com/trellis-k8s/trellis/internal/access/pki"
)

func start(t *testing.T, c apiserver.Config) *apiserver.Server {
	t.Helper()
	s, err := apiserver.Start(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Shutdown() })
	return s
}

func client(t *testing.T, s *apiserver.Server) *http.Client {
	t.Helper()
	c, err := rest.HTTPClientFor(s.ClientConfig())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// body returns the body of a response. It fails the test if the response has another status.
func body(t *testing.T, resp *http.Response, err error, status int) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("status %d, want %d: %s (%v)", resp.StatusCode, status, data, err)
	}
	return string(data)
}

// TestSecondServerIsRefused checks that a second server on the same data directory does not start.
func TestSecondServerIsRefused(t *testing.T) {
	dir := t.TempDir()
	first := start(t, apiserver.Config{DataDir: dir})
	before := read(t, dir+"/admin.kubeconfig")
	second, err := apiserver.Start(context.Background(), apiserver.Config{DataDir: dir})
	if err == nil {
		_ = second.Shutdown()
		t.Fatal("a second server on the same data directory started")
	}
	if !strings.Contains(err.Error(), dir) {
		t.Errorf("the error does not name the directory: %v", err)
	}
	if read(t, dir+"/admin.kubeconfig") != before {
		t.Error("the second server changed the first one's kubeconfig")
	}
	resp, err := client(t, first).Get(first.URL() + "/readyz")
	body(t, resp, err, http.StatusOK)
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestPortInUseIsExplained checks that the error about a port in use names the flag --secure-port.
func TestPortInUseIsExplained(t *testing.T) {
	first := start(t, apiserver.Config{})
	_, err := apiserver.Start(context.Background(), apiserver.Config{Address: first.Address()})
	if err == nil || !strings.Contains(err.Error(), "--secure-port") {
		t.Errorf("error %v does not name --secure-port", err)
	}
}

// TestRestart checks that certificates, objects and resource versions survive a restart. (CRD-071)
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	first := start(t, apiserver.Config{DataDir: dir})
	address := first.Address()
	c := client(t, first)
	resp, err := c.Get(first.URL() + "/api/v1/namespaces/default")
	want := body(t, resp, err, http.StatusOK)
	if err := first.Shutdown(); err != nil {
		t.Fatal(err)
	}
	second := start(t, apiserver.Config{DataDir: dir, Address: address})
	resp, err = c.Get(second.URL() + "/api/v1/namespaces/default") // with the client of the first server
	if got := body(t, resp, err, http.StatusOK); got != want {
		t.Errorf("after a restart\n%s, want\n%s", got, want)
	}
}

// TestReadyMeansServed checks that a ready server serves every stored kind and publishes it in discovery and OpenAPI.
// (CRD-070)
func TestReadyMeansServed(t *testing.T) {
	const crd = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"oxen.example.com"},
"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"oxen","kind":"Ox"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`
	dir := t.TempDir()
	first := start(t, apiserver.Config{DataDir: dir})
	resp, err := client(t, first).Post(first.URL()+"/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
		"application/json", strings.NewReader(crd))
	body(t, resp, err, http.StatusCreated)
	if err := first.Shutdown(); err != nil {
		t.Fatal(err)
	}
	second := start(t, apiserver.Config{DataDir: dir})
	hc := client(t, second)
	for _, c := range []struct{ path, want string }{
		{"/readyz", "ok"}, {"/", `"/apis/example.com/v1"`}, {"/apis/example.com/v1/oxen", `"kind":"OxList"`},
		{"/apis/example.com/v1", `"name":"oxen"`}, {"/openapi/v3", `"apis/example.com/v1"`},
	} {
		resp, err := hc.Get(second.URL() + c.path)
		if got := body(t, resp, err, http.StatusOK); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s is missing in %.300s", c.path, c.want, got)
		}
	}
}

// TestShutdownDrainsRequests checks that a shutdown waits for requests in flight and accepts no new connections.
func TestShutdownDrainsRequests(t *testing.T) {
	s := start(t, apiserver.Config{})
	c := client(t, s)
	reader, writer := io.Pipe()
	type answer struct {
		resp *http.Response
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		resp, err := c.Post(s.URL()+"/api/v1/namespaces/default/configmaps", "application/json", reader)
		answers <- answer{resp, err}
	}()
	// The write returns only after the handler reads the body.
	if _, err := fmt.Fprint(writer, `{"apiVersion":"v1","kind":"ConfigMap",`); err != nil {
		t.Fatal(err)
	}
	inFlight(t, c, s)
	ended := make(chan error, 1)
	go func() { ended <- s.Shutdown() }()
	refused(t, s)
	select {
	case err := <-ended:
		t.Fatalf("the shutdown ended while a request was in flight (%v)", err)
	default:
	}
	if _, err := fmt.Fprint(writer, `"metadata":{"name":"late"}}`); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	a := <-answers
	body(t, a.resp, a.err, http.StatusCreated)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// inFlight waits until the metrics show a mutating request in flight.
func inFlight(t *testing.T, c *http.Client, s *apiserver.Server) {
	t.Helper()
	within(t, func() bool {
		resp, err := c.Get(s.URL() + "/metrics")
		return strings.Contains(body(t, resp, err, http.StatusOK),
			`apiserver_current_inflight_requests{request_kind="mutating"} 1`)
	})
}

// refused waits until the server accepts no connection.
func refused(t *testing.T, s *apiserver.Server) {
	t.Helper()
	within(t, func() bool {
		conn, err := tls.Dial("tcp", s.Address(), &tls.Config{InsecureSkipVerify: true})
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}

func within(t *testing.T, done func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for tick := time.NewTicker(5 * time.Millisecond); !done(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the condition is not true in time")
		}
	}
}

// TestShutdownEndsWatchesCleanly checks that a shutdown ends watches without an error, with HTTP/2 and HTTP/1.1.
func TestShutdownEndsWatchesCleanly(t *testing.T) {
	s := start(t, apiserver.Config{})
	for _, h2 := range []bool{true, false} {
		config := s.ClientConfig()
		if !h2 {
			config.NextProtos = []string{"http/1.1"}
		}
		c, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := c.Get(s.URL() + "/api/v1/namespaces?watch=1")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		lines := bufio.NewReader(resp.Body)
		if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "ADDED") {
			t.Fatalf("first event %q, %v", line, err)
		}
		defer func() {
			if _, err := io.Copy(io.Discard, lines); err != nil {
				t.Errorf("h2=%v: the watch ended with %v, want EOF", h2, err)
			}
		}()
	}
	if err := s.Shutdown(); err != nil {
		t.Error(err)
	}
	if err := s.Shutdown(); err != nil {
		t.Errorf("second shutdown: %v", err)
	}
}

// TestForeignCertificate checks that a client certificate of an unknown CA gets 401, with HTTP/2 and HTTP/1.1.
// (CRD-069)
func TestForeignCertificate(t *testing.T) {
	s := start(t, apiserver.Config{Authentication: authn.Config{Anonymous: true}})
	for _, protocol := range []string{"h2", "http/1.1"} {
		c := &http.Client{Transport: &http.Transport{
			ForceAttemptHTTP2: protocol == "h2",
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{foreign(t)}},
		}}
		resp, err := c.Get(s.URL() + "/healthz")
		body(t, resp, err, http.StatusUnauthorized)
		c.CloseIdleConnections()
		c = &http.Client{Transport: &http.Transport{
			ForceAttemptHTTP2: protocol == "h2",
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		}}
		resp, err = c.Get(s.URL() + "/healthz")
		body(t, resp, err, http.StatusOK)
		resp, err = c.Get(s.URL() + "/api/v1/namespaces")
		body(t, resp, err, http.StatusForbidden)
		c.CloseIdleConnections()
	}
}

// foreign returns the client certificate of another cluster's administrator.
func foreign(t *testing.T) tls.Certificate {
	t.Helper()
	keys, err := pki.Ensure("", nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.X509KeyPair(keys.AdminCert, keys.AdminKey)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func BenchmarkStart(b *testing.B) {
	c := apiserver.Config{DataDir: b.TempDir()}
	for b.Loop() {
		s, err := apiserver.Start(context.Background(), c)
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.Shutdown(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
