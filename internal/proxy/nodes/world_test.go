package nodes_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/fixture/kubelet"
	"github.com/trellis-k8s/trellis/internal/proxy"
	"github.com/trellis-k8s/trellis/internal/proxy/nodes"
)

// The addresses of a node and of a Pod, which lead to the kubelet, and to what it serves without TLS.
const (
	nodeIP = "203.0.113.1"
	podIP  = "203.0.113.2"
)

// world is a Proxy over a cluster of one node and one Pod.
type world struct {
	testing.TB
	*nodes.Proxy
	objects map[string]runtime.Object // by plural, namespace and name
	slices  [][]byte

	mu      sync.Mutex
	dialled []string
	asked   []*http.Request // of the kubelet
}

func newWorld(t testing.TB, change ...func(*nodes.Config)) *world {
	keys, err := pki.Ensure("", []string{nodeIP}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cas := x509.NewCertPool()
	cas.AppendCertsFromPEM(keys.CAPEM)
	w := &world{TB: t, objects: map[string]runtime.Object{}}
	hear := func(r *http.Request) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.asked = append(w.asked, r)
	}
	secured, plain := &kubelet.Server{OnRequest: hear}, &kubelet.Server{OnRequest: hear}
	secured.Start(listen(t), &tls.Config{Certificates: []tls.Certificate{keys.Serving}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: cas})
	t.Cleanup(secured.Close)
	plain.Start(listen(t), nil)
	t.Cleanup(plain.Close)
	to := map[string]net.Addr{nodeIP: secured.Listener.Addr(), podIP: plain.Listener.Addr()}
	c := nodes.Config{
		Dialer: &egress.Dialer{Cluster: func(ctx context.Context, network, address string) (net.Conn, error) {
			w.mu.Lock()
			w.dialled = append(w.dialled, address)
			w.mu.Unlock()
			host, _, err := net.SplitHostPort(address)
			if err != nil || to[host] == nil {
				return nil, fmt.Errorf("nobody is at %s: %w", address, err)
			}
			return (&net.Dialer{}).DialContext(ctx, network, to[host].String())
		}},
		Kubelet: nodes.Kubelet{
			CAs: cas, Certificate: func() (*tls.Certificate, error) { return &keys.Kubelet, nil },
			AddressTypes: []string{string(core.NodeInternalIP)}, Timeout: time.Minute,
		},
		Get: w.get, Slices: func(_, service string) iter.Seq[[]byte] {
			return func(yield func([]byte) bool) {
				for _, s := range w.slices {
					if egress.HasSlice(service, s) && !yield(s) {
						return
					}
				}
			}
		},
		Headers: proxy.Headers{}.Default(),
	}
	for _, f := range change {
		f(&c)
	}
	w.Proxy = nodes.New(c)
	t.Cleanup(w.Close)
	w.node(nodeIP)
	w.objects["pods/ns/p"] = &core.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		Spec:       core.PodSpec{NodeName: "n", Containers: []core.Container{{Name: "c", Ports: []core.ContainerPort{{ContainerPort: 80}}}}},
		Status:     core.PodStatus{PodIPs: []core.PodIP{{IP: podIP}}},
	}
	return w
}

func listen(t testing.TB) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// node has the one node be at an address.
func (w *world) node(address string) {
	w.objects["nodes//n"] = &core.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status:     core.NodeStatus{Addresses: []core.NodeAddress{{Type: core.NodeInternalIP, Address: address}}},
	}
}

func (w *world) get(_ context.Context, plural, namespace, name string) (runtime.Object, error) {
	if obj := w.objects[plural+"/"+namespace+"/"+name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(core.Resource(plural), name)
}

// serve is the URL of a server that connects to whom options lead to, for the object of a name in the namespace ns.
func (w *world) serve(name string, options runtime.Object) string {
	w.Helper()
	fail := func(to http.ResponseWriter, _ *http.Request, err error) {
		code := http.StatusInternalServerError
		if status := (*apierrors.StatusError)(nil); errors.As(err, &status) {
			code = int(status.ErrStatus.Code)
		}
		http.Error(to, err.Error(), code)
	}
	s := httptest.NewServer(http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		h, err := w.Handler(ctx, "ns", name, options, fail)
		if err != nil {
			fail(to, r, err)
			return
		}
		h.ServeHTTP(to, r.WithContext(ctx))
	}))
	w.Cleanup(s.Close)
	return s.URL
}

// ask sends one request, which follows no redirect, and reads the answer. Headers are "Name: value".
func (w *world) ask(method, url, body string, headers ...string) (*http.Response, string) {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, url, strings.NewReader(body))
	if err != nil {
		w.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp, ""
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.Fatal(err)
	}
	return resp, string(text)
}

// want sends a GET and compares the answer.
func (w *world) want(url string, code int, text string) {
	w.Helper()
	if resp, got := w.ask("GET", url, ""); resp.StatusCode != code || strings.TrimSpace(got) != text {
		w.Errorf("%s: %d %q, want %d %q", url, resp.StatusCode, got, code, text)
	}
}

// heard is the last request that the kubelet, or the Pod, has got.
func (w *world) heard() *http.Request {
	w.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.asked) == 0 {
		w.Fatal("nobody has been asked")
	}
	return w.asked[len(w.asked)-1]
}

// slice adds an EndpointSlice of a Service, whose endpoints are "address=Pod".
func (w *world) slice(service, port string, number int, endpoints ...string) {
	var all []string
	for _, e := range endpoints {
		address, of, _ := strings.Cut(e, "=")
		target := ""
		if of != "" {
			target = `,"targetRef":{"kind":"Pod","namespace":"ns","name":` + strconv.Quote(of) + `}`
		}
		all = append(all, `{"addresses":["`+address+`"]`+target+`}`)
	}
	w.slices = append(w.slices, fmt.Appendf(nil, `{"metadata":{"name":"s","labels":{"kubernetes.io/service-name":%q}},"addressType":"IPv4","ports":[{"name":%q,"port":%d}],"endpoints":[%s]}`,
		service, port, number, strings.Join(all, ",")))
}
