package apiserver_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/conversionwebhook"
	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/fixture/tunnel"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// webhookServer is an API server with a webhook server: /convert converts hosts.example.com, /admit allows all
// requests.
type webhookServer struct {
	*testing.T
	*apiserver.Server
	port int
	ca   string // JSON
}

func newWebhookServer(t *testing.T, c apiserver.Config) *webhookServer {
	t.Helper()
	// its controller does not run
	c.Controllers, c.Admission.Disable = []string{"clusterrole-aggregation-controller"}, []string{"ServiceAccount"}
	keys, err := pki.Ensure("", []string{"hook.default.svc", "hook.example.com"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/convert", &conversionwebhook.Handler{Kinds: map[schema.GroupKind]conversionwebhook.Func{
		{Group: "example.com", Kind: "Host"}: func(o *unstructured.Unstructured, _ string) (*unstructured.Unstructured,
			error) {
			return o, nil
		},
	}})
	mux.HandleFunc("/admit", func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			Request struct{ UID string }
		}
		_ = json.NewDecoder(r.Body).Decode(&review)
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":%q,"allowed":true}}`, review.Request.UID)
	})
	hooks := httptest.NewUnstartedServer(mux)
	hooks.TLS = &tls.Config{Certificates: []tls.Certificate{keys.Serving}}
	hooks.StartTLS()
	t.Cleanup(hooks.Close)
	ca, err := json.Marshal(keys.CAPEM)
	if err != nil {
		t.Fatal(err)
	}
	h := &webhookServer{t, start(t, c), hooks.Listener.Addr().(*net.TCPAddr).Port, string(ca)}
	h.post("/api/v1/namespaces/default/services",
		fmt.Sprintf(`{"metadata":{"name":"hook"},"spec":{"ports":[{"port":%d}]}}`, h.port))
	h.post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
		fmt.Sprintf(`{"metadata":{"name":"hook","labels":{"kubernetes.io/service-name":"hook"}},
		"addressType":"IPv4","endpoints":[{"addresses":["203.0.113.5"],"targetRef":{"kind":"Pod","namespace":"default","name":"p"}}],"ports":[{"name":"","port":%d}]}`, h.port))
	return h
}

// send sends a request and returns the status code and the body of the response.
func (h *webhookServer) send(method, path, text string) (int, string) {
	h.Helper()
	r, err := http.NewRequestWithContext(h.Context(), method, h.URL()+path, strings.NewReader(text))
	if err != nil {
		h.Fatal(err)
	}
	resp, err := client(h.T, h.Server).Do(r)
	if err != nil {
		h.Fatal(err)
	}
	defer resp.Body.Close()
	response, err := io.ReadAll(resp.Body)
	if err != nil {
		h.Fatal(err)
	}
	return resp.StatusCode, string(response)
}

func (h *webhookServer) post(path, text string) {
	h.Helper()
	if code, response := h.send("POST", path, text); code != http.StatusCreated {
		h.Fatalf("%s: %d %s", path, code, response)
	}
}

// convert creates a CRD with two versions and an object of its kind. Then it reads the object at the version that is
// not the storage version.
func (h *webhookServer) convert() (int, string) {
	h.Helper()
	crd := strings.Replace(fmt.Sprintf(hostCRD, "CA", h.port), `"port"`, `"path":"/convert","port"`, 1)
	h.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", strings.Replace(crd, `"CA"`, h.ca, 1))
	h.post("/apis/example.com/v1/namespaces/default/hosts",
		`{"apiVersion":"example.com/v1","kind":"Host","metadata":{"name":"h"}}`)
	return h.send("GET", "/apis/example.com/v2/namespaces/default/hosts/h", "")
}

// admit registers the admission webhook for ConfigMaps and creates a ConfigMap.
func (h *webhookServer) admit(clientConfig string) (int, string) {
	h.Helper()
	h.post("/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
		`{"metadata":{"name":"hook"},"webhooks":[{"name":"hook.example.com","sideEffects":"None","admissionReviewVersions":["v1"],
		"rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["configmaps"]}],"clientConfig":{`+clientConfig+`,"caBundle":`+h.ca+`}}]}`)
	return h.send("POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"m"}}`)
}

func (h *webhookServer) service() string {
	return fmt.Sprintf(`"service":{"namespace":"default","name":"hook","path":"/admit","port":%d}`, h.port)
}

// TestClusterThroughTunnel checks that connections to Services use the tunnel of the selection cluster: those to
// conversion and admission webhooks and to aggregated API servers. The far end of the tunnel resolves host names.
// Metrics count the calls and the dials. Webhooks with a URL do not use the tunnel. (KON-001 KON-002 KON-011 CNV-074
// AGG-062)
func TestClusterThroughTunnel(t *testing.T) {
	file, far := tunnel.Select(t, "cluster")
	keysDir := t.TempDir()
	keys, err := pki.Ensure(keysDir, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := apiserver.Config{EgressSelectorFile: file, LocalServices: []string{"default/server"}}
	c.Aggregation.ProxyClientCertFile = filepath.Join(keysDir, "front-proxy-client.crt")
	c.Aggregation.ProxyClientKeyFile = filepath.Join(keysDir, "front-proxy-client.key")
	h := newWebhookServer(t, c)
	requireDial := func(what, address string) {
		t.Helper()
		if all := far.Requests(); !slices.Contains(all, address) {
			t.Errorf("%s: the tunnel dialed %q, want %s", what, all, address)
		}
	}
	endpoint := fmt.Sprintf("203.0.113.5:%d", h.port)
	if code, response := h.convert(); code != http.StatusOK {
		t.Errorf("conversion: %d %s", code, response)
	}
	requireDial("conversion", endpoint)
	if code, response := h.admit(h.service()); code != http.StatusCreated {
		t.Errorf("admission: %d %s", code, response)
	}
	requireDial("admission", endpoint)
	e := newAggregatedServer(t, "a.example.com", keys.ProxyCAPEM, "X-Remote-User")
	e.register(t, h.Server)
	_, port, _ := net.SplitHostPort(e.Listener.Addr().String())
	requireDial("aggregation", "localhost:"+port)
	if code, response := h.send("GET", "/apis/a.example.com/v1/things", ""); code != http.StatusOK {
		t.Errorf("aggregation: %d %s", code, response)
	}
	_, metrics := h.send("GET", "/metrics", "")
	for _, want := range []string{
		`apiserver_crd_conversion_webhook_duration_seconds_count{crd_name="hosts.example.com",from_version="v1",succeeded="true",to_version="v2"} `,
		`apiserver_egress_dialer_dial_start_total{protocol="http_connect",transport="uds"} `,
		`apiserver_egress_dialer_dial_duration_seconds_count{protocol="http_connect",transport="uds"} `,
	} {
		if !strings.Contains(metrics, "\n"+want) {
			t.Errorf("metrics have no %s", want)
		}
	}
	far.Requests()
	h.send("DELETE", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/hook", "")
	h.send("DELETE", "/api/v1/namespaces/default/configmaps/m", "")
	// the certificate of this server is for another name
	if code, response := h.admit(fmt.Sprintf(`"url":"https://127.0.0.1:%d/admit"`,
		h.port)); code != http.StatusInternalServerError || !strings.Contains(response, "127.0.0.1") {
		t.Errorf("a URL: %d %s", code, response)
	}
	if all := far.Requests(); slices.Contains(all, fmt.Sprintf("127.0.0.1:%d", h.port)) {
		t.Errorf("a URL: the tunnel dialed %q", all)
	}
}

// TestControlPlaneThroughTunnel checks that webhooks with a URL use the tunnel of the selection controlplane, and that
// connections to Services do not. (KON-003)
func TestControlPlaneThroughTunnel(t *testing.T) {
	file, far := tunnel.Select(t, "master")
	h := newWebhookServer(t, apiserver.Config{EgressSelectorFile: file, LocalServices: []string{"default/unreachable"}})
	address := fmt.Sprintf("hook.example.com:%d", h.port)
	if code, response := h.admit(`"url":"https://` + address + `/admit"`); code != http.StatusCreated {
		t.Errorf("%d %s", code, response)
	}
	other := func(a string) bool { return a != address } // a client may connect more than once
	if all := far.Requests(); len(all) == 0 || slices.ContainsFunc(all, other) {
		t.Errorf("the tunnel dialed %q", all)
	}
	h.post("/api/v1/namespaces/default/services",
		`{"metadata":{"name":"unreachable"},"spec":{"type":"ExternalName","externalName":"localhost"}}`)
	h.send("DELETE", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/hook", "")
	h.send("DELETE", "/api/v1/namespaces/default/configmaps/m", "")
	if code, response := h.admit(`"service":{"namespace":"default","name":"unreachable","port":1}`); code != http.StatusInternalServerError || !strings.Contains(response, "connection refused") {
		t.Errorf("a Service: %d %s", code, response)
	}
	if all := far.Requests(); slices.ContainsFunc(all, other) {
		t.Errorf("a Service: the tunnel dialed %q", all)
	}
}

// TestTunnelWithoutAgent checks that proxies to Pods and Services use the tunnel. If the tunnel server has no agent or
// cannot be reached, requests that need the tunnel fail with a status that contains the reason, and other requests
// succeed. (KON-011 KON-054)
func TestTunnelWithoutAgent(t *testing.T) {
	file, far := tunnel.Select(t, "cluster")
	h := newWebhookServer(t, apiserver.Config{EgressSelectorFile: file})
	h.post("/api/v1/nodes", `{"metadata":{"name":"n"}}`)
	h.post("/api/v1/namespaces/default/pods",
		`{"metadata":{"name":"p"},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`)
	patch := func(path, status string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), "PATCH", h.URL()+path,
			strings.NewReader(`{"status":`+status+`}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/merge-patch+json")
		resp, err := client(t, h.Server).Do(r)
		body(t, resp, err, http.StatusOK)
	}
	patch("/api/v1/nodes/n/status", `{"addresses":[{"type":"InternalIP","address":"203.0.113.1"}]}`)
	patch("/api/v1/namespaces/default/pods/p/status", `{"podIPs":[{"ip":"203.0.113.5"}],"podIP":"203.0.113.5"}`)
	pod := fmt.Sprintf("/api/v1/namespaces/default/pods/https:p:%d/proxy/admit", h.port)
	service := fmt.Sprintf("/api/v1/namespaces/default/services/https:hook:%d/proxy/admit", h.port)
	for _, path := range []string{pod, service} {
		if code, response := h.send("GET", path, ""); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, response)
		}
	}
	if all := far.Requests(); len(all) == 0 || all[0] != fmt.Sprintf("203.0.113.5:%d", h.port) {
		t.Errorf("the tunnel dialed %q", all)
	}
	// Use another Pod: connections to the first one are pooled.
	h.post("/api/v1/namespaces/default/pods",
		`{"metadata":{"name":"q"},"spec":{"nodeName":"n","containers":[{"name":"c","image":"i"}]}}`)
	patch("/api/v1/namespaces/default/pods/q/status", `{"podIPs":[{"ip":"203.0.113.3"}],"podIP":"203.0.113.3"}`)
	no := "No agent available" // as the reference implementation
	far.DialError.Store(&no)
	if code, response := h.convert(); code != http.StatusInternalServerError ||
		!strings.Contains(response, "No agent available") {
		t.Errorf("conversion: %d %s", code, response)
	}
	if code, response := h.admit(h.service()); code != http.StatusInternalServerError ||
		!strings.Contains(response, "No agent available") {
		t.Errorf("admission: %d %s", code, response)
	}
	for _, why := range []string{"No agent available", "connect to the tunnel server at "} {
		for path, want := range map[string]int{
			"/api/v1/namespaces/default/pods/p/log": http.StatusInternalServerError,
			"/api/v1/nodes/n/proxy/healthz":         http.StatusServiceUnavailable,
			strings.Replace(pod, ":p:", ":q:", 1):   http.StatusServiceUnavailable,
		} {
			if code, response := h.send("GET", path, ""); code != want || !strings.Contains(response, why) {
				t.Errorf("%s: %d %s, want %d and %s", path, code, response, want, why)
			}
		}
		for _, path := range []string{"/readyz", "/api/v1/namespaces/default/pods/p",
			"/apis/example.com/v1/namespaces/default/hosts/h"} {
			if code, response := h.send("GET", path, ""); code != http.StatusOK {
				t.Errorf("%s: %d %s", path, code, response)
			}
		}
		far.Close()
	}
}

// TestEtcdThroughTunnel checks that the connections to etcd use the tunnel of the selection etcd, and that the start
// fails if the tunnel is not available. (KON-003)
func TestEtcdThroughTunnel(t *testing.T) {
	e := storagetest.StartEtcd(t)
	file, far := tunnel.Select(t, "etcd")
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(e.URL, "http://"))
	e.URL = "http://203.0.113.9:" + port
	s := start(t, apiserver.Config{Etcd: etcd.Cluster{Servers: []string{e.URL}}, EgressSelectorFile: file,
		Controllers: []string{"clusterrole-aggregation-controller"}})
	resp, err := client(t, s).Post(s.URL()+"/api/v1/namespaces/default/configmaps", "application/json",
		strings.NewReader(`{"metadata":{"name":"m"}}`))
	body(t, resp, err, http.StatusCreated)
	if all := far.Requests(); len(all) == 0 || all[0] != "203.0.113.9:"+port {
		t.Errorf("the tunnel dialed %q", all)
	}
	if err := s.Shutdown(); err != nil {
		t.Error(err)
	}
	far.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if s, err := apiserver.Start(ctx, apiserver.Config{Etcd: etcd.Cluster{Servers: []string{e.URL}},
		EgressSelectorFile: file}); err == nil {
		_ = s.Shutdown()
		t.Error("the server started without the tunnel")
	}
}

// TestEtcdDialsThroughTunnel checks that the server dials etcd through the tunnel. It needs no etcd: it listens
// itself on an address that is reachable with and without the tunnel. (KON-003)
func TestEtcdDialsThroughTunnel(t *testing.T) {
	file, far := tunnel.Select(t, "etcd")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	started := make(chan error, 1)
	go func() {
		s, err := apiserver.Start(ctx, apiserver.Config{Etcd: etcd.Cluster{Servers: []string{"http://" +
			l.Addr().String()}}, EgressSelectorFile: file})
		if err == nil {
			_ = s.Shutdown()
		}
		_ = l.Close() // ends Accept if the server did not connect
		started <- err
	}()
	came, err := l.Accept()
	if err != nil {
		t.Fatalf("%v: %v", err, <-started)
	}
	defer came.Close()
	if all := far.Requests(); !slices.Contains(all, l.Addr().String()) {
		t.Errorf("the tunnel dialed %q, want %s", all, l.Addr())
	}
	cancel()
	if err := <-started; err == nil || !strings.HasPrefix(err.Error(), "load from etcd at http://"+l.Addr().String()) {
		t.Errorf("the start without etcd: got error %v", err)
	}
}

// TestInvalidEgressConfiguration checks that the start fails if the egress configuration is invalid or lacks a
// selection that a token issuer uses. The error contains the name of the flag. (KON-012)
func TestInvalidEgressConfiguration(t *testing.T) {
	file, _ := tunnel.Select(t, "somewhere")
	if s, err := apiserver.Start(t.Context(), apiserver.Config{EgressSelectorFile: file}); err == nil ||
		!strings.HasPrefix(err.Error(), "--egress-selector-config-file: "+file+
			": egressSelections[0].name: Unsupported value") {
		t.Error(s, err)
	}
	file, _ = tunnel.Select(t, "cluster")
	c := apiserver.Config{EgressSelectorFile: file}
	c.Authentication.ConfigFile = filepath.Join(t.TempDir(), "authn.yaml")
	if err := os.WriteFile(c.Authentication.ConfigFile, []byte(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt: [{issuer: {url: 'https://issuer.example.com', egressSelectorType: controlplane, audiences: [a]}, claimMappings: {username: {claim: sub, prefix: ''}}}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := apiserver.Start(t.Context(), c); err == nil ||
		!strings.Contains(err.Error(), `oidc: egress lookup for "controlplane" is not configured`) {
		t.Error(s, err)
	}
}
