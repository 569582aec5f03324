package apiserver_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/pki"
)

// aggregatedServer is an aggregated API server behind the Service default/server. It serves the resource things in
// version v1 of one API group. Its responses contain the user that it reads from the request headers.
type aggregatedServer struct {
	*httptest.Server
	group   string
	verbs   string // of things, as JSON
	ca      []byte
	proxies *x509.CertPool // trusted CAs of front proxies

	mu   sync.Mutex
	seen []*x509.Certificate // client certificates of the requests
}

func newAggregatedServer(t *testing.T, group string, proxies []byte, userHeader string) *aggregatedServer {
	t.Helper()
	keys, err := pki.Ensure("", []string{"server.default.svc"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	e := &aggregatedServer{group: group, verbs: `["list"]`, ca: keys.CAPEM, proxies: x509.NewCertPool()}
	e.proxies.AppendCertsFromPEM(proxies)
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		certificate := r.TLS.PeerCertificates[0]
		if _, err := certificate.Verify(x509.VerifyOptions{Roots: e.proxies,
			KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		e.mu.Lock()
		e.seen = append(e.seen, certificate)
		e.mu.Unlock()
		if strings.HasSuffix(r.URL.Path, "/v1") {
			fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"`+group+
				`/v1","resources":[{"name":"things","namespaced":true,"kind":"Thing","verbs":`+e.verbs+`}]}`)
			return
		}
		switch r.URL.Path {
		case "/apis/" + group + "/v1/reviews":
			e.review(w, r)
			return
		case "/apis/" + group + "/v1/conversions":
			e.convert(w, r)
			return
		}
		switch r.URL.Query().Get("then") { // of an upgrade
		case "never answers":
			<-r.Context().Done()
			return
		case "echoes":
			echo(w, r.Header.Get("Upgrade"))
			return
		}
		if r.URL.Query().Has("watch") || r.Method != http.MethodGet {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			return
		}
		fmt.Fprintf(w, `{"user":%q,"groups":%q,"usual":%q}`, r.Header.Get(userHeader),
			strings.Join(r.Header["X-Of-Group"], ","), r.Header.Get("X-Remote-User"))
	}))
	e.TLS = &tls.Config{Certificates: []tls.Certificate{keys.Serving}, ClientAuth: tls.RequireAnyClientCert}
	e.EnableHTTP2 = true
	e.StartTLS()
	t.Cleanup(e.Close)
	return e
}

// register creates the Service and the APIService of the aggregated server, and waits until the APIService is
// available.
func (e *aggregatedServer) register(t *testing.T, s *apiserver.Server) {
	t.Helper()
	_, port, err := net.SplitHostPort(e.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ca, err := json.Marshal(e.ca)
	if err != nil {
		t.Fatal(err)
	}
	post := func(path, text string) {
		t.Helper()
		resp, err := client(t, s).Post(s.URL()+path, "application/json", strings.NewReader(text))
		if err != nil || resp.StatusCode/100 != 2 && resp.StatusCode != http.StatusConflict {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
	}
	post("/api/v1/namespaces/default/services",
		`{"metadata":{"name":"server"},"spec":{"type":"ExternalName","externalName":"localhost"}}`)
	post("/apis/apiregistration.k8s.io/v1/apiservices", `{"metadata":{"name":"v1.`+e.group+`"},"spec":{"group":"`+
		e.group+`","version":"v1","groupPriorityMinimum":1000,"versionPriority":15,
		"caBundle":`+string(ca)+`,"service":{"namespace":"default","name":"server","port":`+port+`}}}`)
	eventually(t, "await the availability of the APIService", func(context.Context) bool {
		resp, err := client(t, s).Get(s.URL() + "/apis/apiregistration.k8s.io/v1/apiservices/v1." + e.group)
		text := body(t, resp, err, http.StatusOK)
		if strings.Contains(text, "bad status") || strings.Contains(text, "--allow-local-services") {
			t.Fatal(text)
		}
		return strings.Contains(text, `"reason":"Passed"`)
	})
}

// TestFrontProxyFlags checks the flags of the front proxy. Each request to an aggregated API server has the
// configured client certificate, signed by the configured CA. The configured headers contain the user. The server
// connects to the port in the APIService and verifies the certificate of the aggregated server with the CA bundle of
// the APIService. (AGG-002 AGG-004 AGG-007 AGG-008 AGG-009 AGG-010 AGG-012 AGG-013 AGG-016 AGG-017 AGG-028 AGG-053)
func TestFrontProxyFlags(t *testing.T) {
	dir := t.TempDir()
	keys, err := pki.Ensure(dir, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var c apiserver.Config
	h := &c.Authentication.RequestHeader
	h.CAFile, h.AllowedNames = filepath.Join(dir, "front-proxy-ca.crt"), []string{"front-proxy-client"}
	h.UsernameHeaders, h.GroupHeaders = []string{"X-Of-User", "X-Other"}, []string{"X-Of-Group"}
	h.ExtraHeaderPrefixes = []string{"X-Of-Extra-"}
	c.Aggregation.ProxyClientCertFile = filepath.Join(dir, "front-proxy-client.crt")
	c.Aggregation.ProxyClientKeyFile = filepath.Join(dir, "front-proxy-client.key")
	c.LocalServices = []string{"default/server"}
	s := start(t, c)
	for _, group := range []string{"a.example.com", "b.example.com"} {
		e := newAggregatedServer(t, group, keys.ProxyCAPEM, "X-Of-User")
		e.register(t, s)
		resp, err := client(t, s).Get(s.URL() + "/apis/" + group + "/v1/things")
		if got := body(t, resp, err, http.StatusOK); got != `{"user":"kubernetes-admin","groups":"system:masters,system:authenticated","usual":""}` {
			t.Errorf("%s: %s", group, got)
		}
		for _, certificate := range e.seen {
			if !certificate.Equal(keys.ProxyClient.Leaf) {
				t.Errorf("%s saw %s", group, certificate.Subject)
			}
		}
	}
}

// TestFrontProxyOfAnotherCA checks an aggregated API server that does not trust the front-proxy CA. It rejects
// requests, and the condition of its APIService reports this. (AGG-012 AGG-028)
func TestFrontProxyOfAnotherCA(t *testing.T) {
	others, err := pki.Ensure("", nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, apiserver.Config{LocalServices: []string{"default/server"}})
	e := newAggregatedServer(t, "a.example.com", others.ProxyCAPEM, "X-Remote-User")
	_, port, _ := net.SplitHostPort(e.Listener.Addr().String())
	ca, err := json.Marshal(e.ca)
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		"/api/v1/namespaces/default/services": `{"metadata":{"name":"server"},"spec":{"type":"ExternalName","externalName":"localhost"}}`,
		"/apis/apiregistration.k8s.io/v1/apiservices": `{"metadata":{"name":"v1.a.example.com"},"spec":{"group":"a.example.com","version":"v1","groupPriorityMinimum":1000,"versionPriority":15,
			"caBundle":` + string(ca) + `,"service":{"namespace":"default","name":"server","port":` + port + `}}}`,
	} {
		resp, err := client(t, s).Post(s.URL()+path, "application/json", strings.NewReader(text))
		body(t, resp, err, http.StatusCreated)
	}
	for response := ""; !strings.Contains(response, "bad status from"); {
		resp, err := client(t, s).Get(s.URL() + "/apis/apiregistration.k8s.io/v1/apiservices/v1.a.example.com")
		response = body(t, resp, err, http.StatusOK)
	}
	resp, err := client(t, s).Get(s.URL() + "/apis/a.example.com/v1/things")
	body(t, resp, err, http.StatusServiceUnavailable)
}

// TestAggregatorRouting checks that the server connects to an endpoint of the aggregated API server's Service. If
// --enable-aggregator-routing is false, it connects to the cluster IP of the Service. (AGG-047)
func TestAggregatorRouting(t *testing.T) {
	for _, byClusterIP := range []bool{false, true} {
		s := start(t, apiserver.Config{Aggregation: apiserver.Aggregation{ByClusterIP: byClusterIP}})
		for _, o := range [][2]string{
			{"/api/v1/namespaces/default/services",
				`{"metadata":{"name":"server"},"spec":{"clusterIP":"10.0.0.77","ports":[{"port":443}]}}`},
			{"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
				`{"metadata":{"name":"server","labels":{"kubernetes.io/service-name":"server"}},"addressType":"IPv4",
				"endpoints":[{"addresses":["192.0.2.200"]}],"ports":[{"name":"","port":8443}]}`},
			{"/apis/apiregistration.k8s.io/v1/apiservices",
				`{"metadata":{"name":"v1.a.example.com"},"spec":{"group":"a.example.com","version":"v1","groupPriorityMinimum":1000,
				"versionPriority":15,"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"server"}}}`},
		} {
			resp, err := client(t, s).Post(s.URL()+o[0], "application/json", strings.NewReader(o[1]))
			body(t, resp, err, http.StatusCreated)
		}
		want := "https://192.0.2.200:8443/"
		if byClusterIP {
			want = "https://10.0.0.77:443/"
		}
		for response := ""; !strings.Contains(response, "FailedDiscoveryCheck"); {
			resp, err := client(t, s).Get(s.URL() + "/apis/apiregistration.k8s.io/v1/apiservices/v1.a.example.com")
			if response = body(t, resp, err, http.StatusOK); strings.Contains(response, "FailedDiscoveryCheck") &&
				!strings.Contains(response, want) {
				t.Errorf("%s, want %s", response, want)
			}
		}
	}
}
