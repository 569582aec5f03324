package aggregation_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/aggregation"
	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/fixture"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/proxy"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

const (
	serviceName = "wardle-server.wardle.svc"
	resources   = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"wardle.example.com/v1alpha1","resources":[
		{"name":"flunders","singularName":"flunder","namespaced":true,"kind":"Flunder","verbs":["get","list"],"shortNames":["fl"]},
		{"name":"flunders/status","singularName":"","namespaced":true,"kind":"Flunder","verbs":["get"]}]}`
)

// env is an Aggregator with the API servers that it connects to.
type env struct {
	*fixture.Env
	*aggregation.Aggregator
	reports chan aggregation.Condition
	report  func(s *catalog.APIService) // called for each report before it is sent to reports; may be nil
	served  *httptest.Server            // proxies all requests to the APIService

	mu         sync.Mutex
	addresses  []string
	other      string // address of Service other
	unresolved error  // returned in place of addresses
	generation atomic.Uint64
	clock      fastClock
}

// fastClock is the real clock with an offset.
type fastClock struct {
	clock.RealClock
	forward atomic.Int64
}

func (c *fastClock) Now() time.Time                  { return time.Now().Add(time.Duration(c.forward.Load())) }
func (c *fastClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func newEnv(t *testing.T) *env {
	e := &env{Env: fixture.Open(t, kinds.Config{}), reports: make(chan aggregation.Condition, 100)}
	client, err := pki.Ensure("", nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	e.Aggregator = aggregation.New(aggregation.Config{
		Clock:   &e.clock,
		Catalog: e.Live.Load,
		Dialer: &egress.Dialer{Generation: func(string, string) func() uint64 { return e.generation.Load },
			IsLocal: func(string, string) bool { return true }},
		Endpoints:   e.endpoints,
		Certificate: func() (*tls.Certificate, error) { return &client.ProxyClient, nil },
		Headers:     proxy.Headers{}.Default(),
		Report: func(s *catalog.APIService, c aggregation.Condition) {
			if e.report != nil {
				e.report(s)
			}
			e.reports <- c
		},
	})
	t.Cleanup(e.Close)
	e.Live.OnUpdate(func(*catalog.Catalog) { e.Follow() })
	return e
}

func (e *env) endpoints(_, name string, _ int32) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if name == "other" {
		return []string{e.other}, nil
	}
	return e.addresses, e.unresolved
}

// setEndpoints sets the endpoints, or the error that is returned instead of endpoints.
func (e *env) setEndpoints(err error, servers ...*httptest.Server) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.addresses, e.unresolved = nil, err
	for _, s := range servers {
		e.addresses = append(e.addresses, s.Listener.Addr().String())
	}
	e.generation.Add(1)
}

var jane = &user.DefaultInfo{Name: "jane", UID: "7", Groups: []string{"dev", "ops"},
	Extra: map[string][]string{"example.com/what%": {"a", "b"}}}

// register creates an APIService, and a server that proxies requests to it as jane.
func (e *env) register(spec object.Tree) *catalog.APIService {
	e.Helper()
	e.putAPIService("1", spec)
	_, service := e.Catalog().Route("wardle.example.com", "v1alpha1", "flunders")
	if service == nil {
		e.Fatal("flunders is not served")
	}
	e.served = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header()["Audit-Id"] = []string{"the-audit-id"}
		rw.Header()["Cache-Control"] = []string{"no-cache, private"}
		stream := r.URL.Query().Get("watch") != ""
		if !stream {
			ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second) // ends slow requests soon
			defer cancel()
			r = r.WithContext(ctx)
		}
		e.ServeHTTP(rw, r, service, jane, stream)
	}))
	e.served.Start()
	e.Cleanup(e.served.Close)
	return service
}

// putAPIService creates an APIService with a UID, or updates it. spec contains the fields that differ from the default.
func (e *env) putAPIService(uid string, spec object.Tree) {
	e.Helper()
	s := object.Tree{
		"group": "wardle.example.com", "version": "v1alpha1", "groupPriorityMinimum": 1000, "versionPriority": 15,
		"service": object.Tree{"namespace": "wardle", "name": "wardle-server", "port": 443},
	}
	maps.Copy(s, spec)
	e.PutAPIService(object.Tree{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": object.Tree{"name": "v1alpha1.wardle.example.com", "uid": uid}, "spec": s})
}

// awaitReport waits for a report that satisfies ok.
func (e *env) awaitReport(want string, ok func(aggregation.Condition) bool) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.Context(), time.Minute)
	defer cancel()
	for {
		select {
		case c := <-e.reports:
			if ok(c) {
				return
			}
			e.Logf("reported %+v", c)
		case <-ctx.Done():
			e.Fatal("not reported: ", want)
		}
	}
}

type condition = aggregation.Condition

func available(c condition) bool   { return c.Available }
func unavailable(c condition) bool { return !c.Available }

// extension starts an API server. It serves discovery itself, and other requests with handler.
func extension(t *testing.T, handler http.HandlerFunc) (server *httptest.Server, ca []byte) {
	t.Helper()
	keys, err := pki.Ensure("", []string{serviceName}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/apis/wardle.example.com/v1alpha1" &&
			r.Header.Get("X-Remote-User") == "system:kube-aggregator" {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, resources)
			return
		}
		handler(w, r)
	}))
	server.EnableHTTP2 = true
	server.TLS = &tls.Config{Certificates: []tls.Certificate{keys.Serving}, ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, keys.CAPEM
}

// TestConditions checks that conditions have kube-apiserver's reasons and messages. AGG-056
func TestConditions(t *testing.T) {
	server, ca := extension(t, http.NotFound)
	untrusted, _ := extension(t, http.NotFound)
	e := newEnv(t)
	e.setEndpoints(egressError(t, nil, nil))
	e.register(object.Tree{"caBundle": ca})
	service := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}}
	service.Name = "wardle-server"
	other := service.DeepCopy()
	other.Spec.Ports[0].Port = 444
	slice := &discoveryv1.EndpointSlice{}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "wardle-server"}
	for _, c := range []struct {
		err     error
		at      *httptest.Server
		reason  string
		message string
	}{
		{egressError(t, nil, nil), nil, "ServiceNotFound", `service/wardle-server in "wardle" is not present`},
		{egressError(t, other, nil), nil, "ServicePortError",
			`service/wardle-server in "wardle" is not listening on port 443`},
		{egressError(t, service, nil), nil, "EndpointsNotFound",
			`cannot find endpointslices for service/wardle-server in "wardle"`},
		{egressError(t, service, slice), nil, "MissingEndpoints",
			`endpointslices for service/wardle-server in "wardle" have no addresses with port name "https"`},
		{errors.New("other error"), nil, "FailedDiscoveryCheck", "other error"},
		{nil, untrusted, "FailedDiscoveryCheck", "certificate signed by unknown authority"},
		{nil, server, "Passed", "all checks passed"},
	} {
		if c.at == nil {
			e.setEndpoints(c.err)
		} else {
			e.setEndpoints(nil, c.at)
		}
		e.awaitReport(c.reason, func(got aggregation.Condition) bool {
			return got.Reason == c.reason && strings.Contains(got.Message, c.message) &&
				got.Available == (c.reason == "Passed")
		})
	}
}

// egressError returns the error of resolving a Service from the given objects.
func egressError(t *testing.T, service, slice any) error {
	t.Helper()
	raw := func(o any) []byte {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	o := egress.Objects{
		Get: func(kind, _, _ string) []byte {
			if kind != "services" || service == nil {
				return nil
			}
			return raw(service)
		},
		Slices: func(string, string) iter.Seq[[]byte] {
			return func(yield func([]byte) bool) {
				if slice != nil {
					yield(raw(slice))
				}
			}
		},
	}
	_, err := o.Endpoints("wardle", "wardle-server", 443)
	if err == nil {
		t.Fatal("no error")
	}
	return err
}

// TestBackendDies checks that a backend becomes unavailable as soon as its connection breaks, even if there is no
// request. The backend becomes available again when it runs again. Its resources are stale in between. AGG-057,
// EXT-028
func TestBackendDies(t *testing.T) {
	server, ca := extension(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "here") })
	e := newEnv(t)
	e.setEndpoints(nil, server)
	service := e.register(object.Tree{"caBundle": ca})
	e.awaitReport("available", available)
	if d := e.Discovery(service); d.Freshness != "Current" || len(d.Resources) != 1 ||
		d.Resources[0].Resource != "flunders" || len(d.Resources[0].Subresources) != 1 {
		t.Errorf("discovery: %+v", d)
	}
	e.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusOK, "here")
	address := server.Listener.Addr().String()
	server.CloseClientConnections()
	server.Close()
	e.awaitReport("unavailable", unavailable)
	e.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusServiceUnavailable, "service unavailable\n")
	if d := e.Discovery(service); d.Freshness != "Stale" || len(d.Resources) != 1 {
		t.Errorf("discovery: %+v", d)
	}
	e.setEndpoints(nil, restart(t, server, address))
	e.awaitReport("available again", available)
	e.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusOK, "here")
	e.RemoveAPIService("v1alpha1.wardle.example.com")
	e.Catalog()
	e.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusServiceUnavailable, "service unavailable\n")
}

// TestDocumentsAreFetchedAgain checks that the server fetches the OpenAPI documents of an extension server with its own
// identity, and fetches old documents again. AGG-059
func TestDocumentsAreFetchedAgain(t *testing.T) {
	var edition atomic.Int64
	fetched := make(chan string, 10)
	server, ca := extension(t, func(w http.ResponseWriter, r *http.Request) {
		defer func() { fetched <- r.URL.Path + " by " + r.Header.Get("X-Remote-User") }()
		if r.URL.Path == "/openapi/v3" {
			fmt.Fprintf(w, `{"paths":{"apis/wardle.example.com/v1alpha1":{"serverRelativeURL":"/openapi/v3/apis/wardle.example.com/v1alpha1?hash=%d"}}}`, edition.Load())
			return
		}
		fmt.Fprintf(w, `{"swagger":"2.0","info":{"version":"%d"}}`, edition.Load())
	})
	e := newEnv(t)
	e.setEndpoints(nil, server)
	service := e.register(object.Tree{"caBundle": ca})
	e.awaitReport("available", available)
	v2 := func() string { text, _ := e.OpenAPIV2(t.Context(), service); return string(text) }
	v3 := func() string { return e.OpenAPIV3Hash(t.Context(), service) }
	for path, get := range map[string]func() string{"/openapi/v2": v2, "/openapi/v3": v3} {
		edition.Store(1)
		if first := get(); !strings.Contains(first, "1") || <-fetched != path+" by system:aggregator" {
			t.Errorf("%s: %s", path, first)
		}
		edition.Store(2)
		if soon := get(); !strings.Contains(soon, "1") || len(fetched) > 0 {
			t.Errorf("%s is fetched for each request: %s", path, soon)
		}
		e.clock.forward.Add(int64(time.Minute))
		for late := time.After(10 * time.Second); !strings.Contains(get(), "2"); {
			select {
			case <-time.After(time.Millisecond):
			case <-late:
				t.Fatalf("%s is never fetched again", path)
			}
		}
		<-fetched
	}
}

// expect sends a GET request through the aggregator and compares the response.
func (e *env) expect(path string, status int, body string) {
	e.Helper()
	resp, err := http.Get(e.served.URL + path)
	if err != nil {
		e.Fatal(err)
	}
	defer resp.Body.Close()
	if got := read(e.Env, resp); resp.StatusCode != status || got != body {
		e.Errorf("%s: %d %q, want %d %q", path, resp.StatusCode, got, status, body)
	}
}

// TestReportsOfRecreatedAPIService checks that a report for a deleted APIService never follows the first report for a
// new one of the same name. Otherwise the availability of the new one would remain unknown. AGG-048
func TestReportsOfRecreatedAPIService(t *testing.T) {
	e := newEnv(t)
	e.setEndpoints(errors.New("no endpoints")) // so no check takes long
	running, second := make(chan struct{}), make(chan struct{})
	e.report = func(s *catalog.APIService) {
		if s.UID == "2" {
			close(second)
			return
		}
		close(running)
		select {
		case <-second:
			t.Error("the new APIService was reported during a report for the old one")
		case <-time.After(100 * time.Millisecond):
		}
	}
	e.putAPIService("1", nil)
	e.Follow()
	<-running
	e.putAPIService("2", nil)
	e.Follow()
	<-second
}

// TestSpecChanges checks that a changed APIService stays available while its backend is checked again. AGG-048
func TestSpecChanges(t *testing.T) {
	var slow atomic.Bool
	server, ca := extension(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "here") })
	well := server.Config.Handler
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if slow.Load() && r.Header.Get("X-Remote-User") == "system:kube-aggregator" {
			<-r.Context().Done()
			return
		}
		well.ServeHTTP(w, r)
	})
	e := newEnv(t)
	e.setEndpoints(nil, server)
	e.register(object.Tree{"caBundle": ca})
	e.awaitReport("available", available)
	slow.Store(true)
	service := e.register(object.Tree{"caBundle": ca, "versionPriority": 16})
	e.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusOK, "here")
	if d := e.Discovery(service); d == nil || len(d.Resources) != 1 {
		t.Errorf("discovery: %+v", d)
	}
}

// TestOneEndpointIsEnough checks that a backend is available as soon as one of its endpoints has responded. AGG-056
func TestOneEndpointIsEnough(t *testing.T) {
	good, ca := extension(t, http.NotFound)
	ended := make(chan struct{})
	mute := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		close(ended)
	}))
	mute.EnableHTTP2, mute.TLS = true, good.TLS.Clone()
	mute.StartTLS()
	t.Cleanup(mute.Close)
	e := newEnv(t)
	e.setEndpoints(nil, mute, good)
	e.register(object.Tree{"caBundle": ca})
	e.awaitReport("available", available)
	select {
	case <-ended:
		t.Error("the check waited for the silent endpoint")
	default:
	}
}

// TestSlowRequests checks that requests that time out do not affect others. AGG-057
func TestSlowRequests(t *testing.T) {
	server, ca := extension(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/slow") {
			<-r.Context().Done()
		}
		fmt.Fprint(w, "here")
	})
	e := newEnv(t)
	e.setEndpoints(nil, server)
	e.register(object.Tree{"caBundle": ca})
	e.awaitReport("available", available)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			e.expect("/apis/wardle.example.com/v1alpha1/slow", http.StatusGatewayTimeout,
				"the backend API server did not respond within the allotted time\n")
		})
	}
	all.Wait()
	e.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusOK, "here")
}
