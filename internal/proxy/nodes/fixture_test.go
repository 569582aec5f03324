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

// Addresses of a node and a Pod. Connections to the node reach a fake kubelet. Connections to the Pod reach a server
// without TLS.
const (
	nodeIP = "203.0.113.1"
	podIP  = "203.0.113.2"
)

// cluster is a Proxy for a cluster with one node and one Pod.
type cluster struct {
	testing.TB
	*nodes.Proxy
	objects map[string]runtime.Object // by plural, namespace and name
	slices  [][]byte

	mu       sync.Mutex
	dialed   []string
	requests []*http.Request // received by the kubelet
}

func newCluster(t testing.TB, change ...func(*nodes.Config)) *cluster {
	keys, err := pki.Ensure("", []string{nodeIP}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cas := x509.NewCertPool()
	cas.AppendCertsFromPEM(keys.CAPEM)
	c := &cluster{TB: t, objects: map[string]runtime.Object{}}
	record := func(r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.requests = append(c.requests, r)
	}
	secured, plain := &kubelet.Server{OnRequest: record}, &kubelet.Server{OnRequest: record}
	secured.Start(listen(t), &tls.Config{Certificates: []tls.Certificate{keys.Serving},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: cas})
	t.Cleanup(secured.Close)
	plain.Start(listen(t), nil)
	t.Cleanup(plain.Close)
	to := map[string]net.Addr{nodeIP: secured.Listener.Addr(), podIP: plain.Listener.Addr()}
	config := nodes.Config{
		Dialer: &egress.Dialer{Cluster: func(ctx context.Context, network, address string) (net.Conn, error) {
			c.mu.Lock()
			c.dialed = append(c.dialed, address)
			c.mu.Unlock()
			host, _, err := net.SplitHostPort(address)
			if err != nil || to[host] == nil {
				return nil, fmt.Errorf("no server at %s: %w", address, err)
			}
			return (&net.Dialer{}).DialContext(ctx, network, to[host].String())
		}},
		Kubelet: nodes.Kubelet{
			CAs: cas, Certificate: func() (*tls.Certificate, error) { return &keys.Kubelet, nil },
			AddressTypes: []string{string(core.NodeInternalIP)}, Timeout: time.Minute,
		},
		Get: c.get, Slices: func(_, service string) iter.Seq[[]byte] {
			return func(yield func([]byte) bool) {
				for _, s := range c.slices {
					if egress.HasSlice(service, s) && !yield(s) {
						return
					}
				}
			}
		},
		Headers: proxy.Headers{}.Default(),
	}
	for _, f := range change {
		f(&config)
	}
	c.Proxy = nodes.New(config)
	t.Cleanup(c.Close)
	c.node(nodeIP)
	c.objects["pods/ns/p"] = &core.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"},
		Spec: core.PodSpec{NodeName: "n",
			Containers: []core.Container{{Name: "c", Ports: []core.ContainerPort{{ContainerPort: 80}}}}},
		Status: core.PodStatus{PodIPs: []core.PodIP{{IP: podIP}}},
	}
	return c
}

func listen(t testing.TB) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// node sets the address of the node.
func (c *cluster) node(address string) {
	c.objects["nodes//n"] = &core.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status:     core.NodeStatus{Addresses: []core.NodeAddress{{Type: core.NodeInternalIP, Address: address}}},
	}
}

func (c *cluster) get(_ context.Context, plural, namespace, name string) (runtime.Object, error) {
	if obj := c.objects[plural+"/"+namespace+"/"+name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(core.Resource(plural), name)
}

// serve starts a server with the Handler for the given options and the object with the given name in the namespace ns.
// It returns the URL of the server.
func (c *cluster) serve(name string, options runtime.Object) string {
	c.Helper()
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
		h, err := c.Handler(ctx, "ns", name, options, fail)
		if err != nil {
			fail(to, r, err)
			return
		}
		h.ServeHTTP(to, r.WithContext(ctx))
	}))
	c.Cleanup(s.Close)
	return s.URL
}

// do sends a request and reads the response. It follows no redirects. headers have the form "Name: value".
func (c *cluster) do(method, url, body string, headers ...string) (*http.Response, string) {
	c.Helper()
	r, err := http.NewRequestWithContext(c.Context(), method, url, strings.NewReader(body))
	if err != nil {
		c.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		c.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return resp, ""
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.Fatal(err)
	}
	return resp, string(text)
}

// want sends a GET request and compares the response.
func (c *cluster) want(url string, code int, text string) {
	c.Helper()
	if resp, got := c.do("GET", url, ""); resp.StatusCode != code || strings.TrimSpace(got) != text {
		c.Errorf("%s: %d %q, want %d %q", url, resp.StatusCode, got, code, text)
	}
}

// lastRequest returns the last request that the kubelet or the Pod has received.
func (c *cluster) lastRequest() *http.Request {
	c.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.requests) == 0 {
		c.Fatal("no request was received")
	}
	return c.requests[len(c.requests)-1]
}

// slice adds an EndpointSlice of a Service. Each endpoint has the form "address" or "address=Pod".
func (c *cluster) slice(service, port string, number int, endpoints ...string) {
	var all []string
	for _, e := range endpoints {
		address, of, _ := strings.Cut(e, "=")
		target := ""
		if of != "" {
			target = `,"targetRef":{"kind":"Pod","namespace":"ns","name":` + strconv.Quote(of) + `}`
		}
		all = append(all, `{"addresses":["`+address+`"]`+target+`}`)
	}
	c.slices = append(c.slices, fmt.Appendf(nil,
		`{"metadata":{"name":"s","labels":{"kubernetes.io/service-name":%q}},"addressType":"IPv4","ports":[{"name":%q,"port":%d}],"endpoints":[%s]}`,
		service, port, number, strings.Join(all, ",")))
}
