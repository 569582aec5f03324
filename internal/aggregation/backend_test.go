package aggregation_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
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
	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	serviceName = "wardle-server.wardle.svc"
	resources   = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"wardle.example.com/v1alpha1","resources":[
		{"name":"flunders","singularName":"flunder","namespaced":true,"kind":"Flunder","verbs":["get","list"],"shortNames":["fl"]},
		{"name":"flunders/status","singularName":"","namespaced":true,"kind":"Flunder","verbs":["get"]}]}`
)

// world is an Aggregator, and the API servers that it finds.
type world struct {
	*fixture.Env
	*aggregation.Aggregator
	reports chan aggregation.Condition
	served  *httptest.Server // proxies everything to the one APIService

	mu         sync.Mutex
	addresses  []string
	other      string // the address of Service other
	unresolved error  // instead of addresses
	generation atomic.Uint64
	clock      fastClock
}

// fastClock is the machine's clock, put forward.
type fastClock struct {
	clock.RealClock
	forward atomic.Int64
}

func (c *fastClock) Now() time.Time                  { return time.Now().Add(time.Duration(c.forward.Load())) }
func (c *fastClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

func newWorld(t *testing.T) *world {
	w := &world{Env: fixture.Open(t, kinds.Config{}), reports: make(chan aggregation.Condition, 100)}
	client, err := pki.Ensure("", nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w.Aggregator = aggregation.New(aggregation.Config{
		Clock:       &w.clock,
		Catalog:     w.Live.Load,
		Dialer:      &egress.Dialer{Generation: func(string, string) func() uint64 { return w.generation.Load }, IsLocal: func(string, string) bool { return true }},
		Endpoints:   w.endpoints,
		Certificate: func() (*tls.Certificate, error) { return &client.ProxyClient, nil },
		Headers:     proxy.Headers{}.Default(),
		Report:      func(_ *resource.APIService, c aggregation.Condition) { w.reports <- c },
	})
	t.Cleanup(w.Close)
	w.Live.OnUpdate(func(*resource.Catalog) { w.Follow() })
	return w
}

func (w *world) endpoints(_, name string, _ int32) ([]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if name == "other" {
		return []string{w.other}, nil
	}
	return w.addresses, w.unresolved
}

// at says where the endpoints are from now on.
func (w *world) at(err error, servers ...*httptest.Server) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addresses, w.unresolved = nil, err
	for _, s := range servers {
		w.addresses = append(w.addresses, s.Listener.Addr().String())
	}
	w.generation.Add(1)
}

var jane = &user.DefaultInfo{Name: "jane", UID: "7", Groups: []string{"dev", "ops"}, Extra: map[string][]string{"example.com/what%": {"a", "b"}}}

// register makes an APIService, and a server that proxies to it as jane.
func (w *world) register(spec object.Tree) *resource.APIService {
	w.Helper()
	s := object.Tree{
		"group": "wardle.example.com", "version": "v1alpha1", "groupPriorityMinimum": 1000, "versionPriority": 15,
		"service": object.Tree{"namespace": "wardle", "name": "wardle-server", "port": 443},
	}
	for k, v := range spec {
		s[k] = v
	}
	w.PutAPIService(object.Tree{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": object.Tree{"name": "v1alpha1.wardle.example.com", "uid": "1"}, "spec": s})
	_, service := w.Catalog().Route("wardle.example.com", "v1alpha1", "flunders")
	if service == nil {
		w.Fatal("nobody serves flunders")
	}
	w.served = httptest.NewUnstartedServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		rw.Header()["Audit-Id"] = []string{"the-audit-id"}
		rw.Header()["Cache-Control"] = []string{"no-cache, private"}
		stream := r.URL.Query().Get("watch") != ""
		if !stream {
			ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second) // for tests of requests that end by it
			defer cancel()
			r = r.WithContext(ctx)
		}
		w.ServeHTTP(rw, r, service, jane, stream)
	}))
	w.served.Start()
	w.Cleanup(w.served.Close)
	return service
}

// until waits for a report.
func (w *world) until(what string, ok func(aggregation.Condition) bool) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	for {
		select {
		case c := <-w.reports:
			if ok(c) {
				return
			}
			w.Logf("reported %+v", c)
		case <-ctx.Done():
			w.Fatal("not reported: ", what)
		}
	}
}

type condition = aggregation.Condition

func available(c condition) bool   { return c.Available }
func unavailable(c condition) bool { return !c.Available }

// extension is an API server: it answers discovery, and handler the rest.
func extension(t *testing.T, handler http.HandlerFunc) (server *httptest.Server, ca []byte) {
	t.Helper()
	keys, err := pki.Ensure("", []string{serviceName}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/apis/wardle.example.com/v1alpha1" && r.Header.Get("X-Remote-User") == "system:kube-aggregator" {
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

// TestConditions: AGG-056. The reasons and messages are kube-apiserver's.
func TestConditions(t *testing.T) {
	server, ca := extension(t, http.NotFound)
	stranger, _ := extension(t, http.NotFound)
	w := newWorld(t)
	w.at(egressError(t, nil, nil))
	w.register(object.Tree{"caBundle": ca})
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
		{egressError(t, other, nil), nil, "ServicePortError", `service/wardle-server in "wardle" is not listening on port 443`},
		{egressError(t, service, nil), nil, "EndpointsNotFound", `cannot find endpointslices for service/wardle-server in "wardle"`},
		{egressError(t, service, slice), nil, "MissingEndpoints", `endpointslices for service/wardle-server in "wardle" have no addresses with port name "https"`},
		{errors.New("what else"), nil, "FailedDiscoveryCheck", "what else"},
		{nil, stranger, "FailedDiscoveryCheck", "certificate signed by unknown authority"},
		{nil, server, "Passed", "all checks passed"},
	} {
		if c.at == nil {
			w.at(c.err)
		} else {
			w.at(nil, c.at)
		}
		w.until(c.reason, func(got aggregation.Condition) bool {
			return got.Reason == c.reason && strings.Contains(got.Message, c.message) && got.Available == (c.reason == "Passed")
		})
	}
}

// egressError is what finding the endpoints of a Service says that is stored like this.
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

// TestBackendDies: AGG-057, EXT-028. A backend that goes is known to be gone because its connection breaks, with no request
// having been made, and known to be back once it is; what is known of its resources is out of date meanwhile.
func TestBackendDies(t *testing.T) {
	server, ca := extension(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "here") })
	w := newWorld(t)
	w.at(nil, server)
	service := w.register(object.Tree{"caBundle": ca})
	w.until("available", available)
	if d := w.Discovery(service); d.Freshness != "Current" || len(d.Resources) != 1 || d.Resources[0].Resource != "flunders" || len(d.Resources[0].Subresources) != 1 {
		t.Errorf("discovery: %+v", d)
	}
	w.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusOK, "here")
	address := server.Listener.Addr().String()
	server.CloseClientConnections()
	server.Close()
	w.until("unavailable", unavailable)
	w.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusServiceUnavailable, "service unavailable\n")
	if d := w.Discovery(service); d.Freshness != "Stale" || len(d.Resources) != 1 {
		t.Errorf("discovery: %+v", d)
	}
	w.at(nil, again(t, server, address))
	w.until("available again", available)
	w.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusOK, "here")
	w.RemoveAPIService("v1alpha1.wardle.example.com")
	w.Catalog()
	w.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusServiceUnavailable, "service unavailable\n")
}

// TestDocumentsAreFetchedAgain: AGG-059. The documents of an extension server are fetched by the main server's own requests, and once more
// when they are old, so that a change there shows here.
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
	w := newWorld(t)
	w.at(nil, server)
	service := w.register(object.Tree{"caBundle": ca})
	w.until("available", available)
	v2 := func() string { text, _ := w.OpenAPIV2(t.Context(), service); return string(text) }
	v3 := func() string { return w.OpenAPIV3Hash(t.Context(), service) }
	for path, get := range map[string]func() string{"/openapi/v2": v2, "/openapi/v3": v3} {
		edition.Store(1)
		if first := get(); !strings.Contains(first, "1") || <-fetched != path+" by system:aggregator" {
			t.Errorf("%s: %s", path, first)
		}
		edition.Store(2)
		if soon := get(); !strings.Contains(soon, "1") || len(fetched) > 0 {
			t.Errorf("%s is fetched for each request: %s", path, soon)
		}
		w.clock.forward.Add(int64(time.Minute))
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

// expect asks through the aggregator.
func (w *world) expect(path string, status int, body string) {
	w.Helper()
	resp, err := http.Get(w.served.URL + path)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	if got := read(w.Env, resp); resp.StatusCode != status || got != body {
		w.Errorf("%s: %d %q, want %d %q", path, resp.StatusCode, got, status, body)
	}
}

// TestSpecChanges: AGG-048. A change of an APIService breaks nothing while the backend is looked at anew.
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
	w := newWorld(t)
	w.at(nil, server)
	w.register(object.Tree{"caBundle": ca})
	w.until("available", available)
	slow.Store(true)
	service := w.register(object.Tree{"caBundle": ca, "versionPriority": 16})
	w.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusOK, "here")
	if d := w.Discovery(service); d == nil || len(d.Resources) != 1 {
		t.Errorf("discovery: %+v", d)
	}
}

// TestOneEndpointIsEnough: AGG-056. Whether a backend is available is known as soon as one of its endpoints has answered.
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
	w := newWorld(t)
	w.at(nil, mute, good)
	w.register(object.Tree{"caBundle": ca})
	w.until("available", available)
	select {
	case <-ended:
		t.Error("it waited until the mute endpoint was given up")
	default:
	}
}

// TestSlowRequests: AGG-057. That some requests are not answered in time says nothing of others.
func TestSlowRequests(t *testing.T) {
	server, ca := extension(t, func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/slow") {
			<-r.Context().Done()
		}
		fmt.Fprint(w, "here")
	})
	w := newWorld(t)
	w.at(nil, server)
	w.register(object.Tree{"caBundle": ca})
	w.until("available", available)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			w.expect("/apis/wardle.example.com/v1alpha1/slow", http.StatusGatewayTimeout, "the API server that serves this did not answer within the allotted time\n")
		})
	}
	all.Wait()
	w.expect("/apis/wardle.example.com/v1alpha1/flunders", http.StatusOK, "here")
}
