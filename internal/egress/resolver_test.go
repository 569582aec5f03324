package egress

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/util/proxy"
	listersv1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// cluster holds the stored objects, all in namespace n.
type cluster struct {
	services  []*corev1.Service
	endpoints []*corev1.Endpoints
	slices    []*discoveryv1.EndpointSlice
}

func marshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func (w *cluster) objects() Objects {
	return Objects{
		Get: func(resource, namespace, name string) []byte {
			for _, s := range w.services {
				if resource == "services" && namespace == "n" && s.Name == name {
					return marshal(s)
				}
			}
			for _, e := range w.endpoints {
				if resource == "endpoints" && namespace == "n" && e.Name == name {
					return marshal(e)
				}
			}
			return nil
		},
		Slices: func(namespace, service string) iter.Seq[[]byte] {
			return func(yield func([]byte) bool) {
				for _, s := range w.slices {
					if raw := marshal(s); namespace == "n" && HasSlice(service, raw) && !yield(raw) {
						return
					}
				}
			}
		},
	}
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "n", Name: name} }

func service(name string, kind corev1.ServiceType, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: named(name), Spec: corev1.ServiceSpec{Type: kind, Ports: ports,
		IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}}}
}

func slice(
	of, name, portName string,
	port int32,
	family discoveryv1.AddressType,
	endpoints ...discoveryv1.Endpoint,
) *discoveryv1.EndpointSlice {
	m := named(name)
	m.Labels = map[string]string{discoveryv1.LabelServiceName: of}
	return &discoveryv1.EndpointSlice{ObjectMeta: m, AddressType: family, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}}}
}

func endpoint(address string, ready *bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
}

// listen listens on the loopback interface and writes name to each connection.
func listen(t *testing.T, name string) (port int32) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, name)
			_ = c.Close()
		}
	}()
	return int32(l.Addr().(*net.TCPAddr).Port)
}

// TestResolvedAddressesAnswer checks that the resolved addresses can be dialed. Their port is the one of the
// endpoints, which differs from the port of the Service. CNV-040 CNV-016
func TestResolvedAddressesAnswer(t *testing.T) {
	direct, named1, old := listen(t, "direct"), listen(t, "named"), listen(t, "old")
	w := &cluster{
		services: []*corev1.Service{
			service("web", corev1.ServiceTypeClusterIP, corev1.ServicePort{Port: 443,
				TargetPort: intstr.FromInt32(8443)},
				corev1.ServicePort{Name: "b", Port: 80, TargetPort: intstr.FromString("http")}),
			{ObjectMeta: named("headless"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP,
				ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 1}}}},
			service("mirrored", corev1.ServiceTypeNodePort, corev1.ServicePort{Name: "x", Port: 7}),
			{ObjectMeta: named("out"), Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName,
				ExternalName: "localhost"}},
		},
		slices: []*discoveryv1.EndpointSlice{
			slice("web", "web-1", "", direct, discoveryv1.AddressTypeIPv4, endpoint("127.0.0.1", nil)),
			slice("web", "web-2", "b", named1, discoveryv1.AddressTypeIPv4, endpoint("127.0.0.1", new(true)),
				endpoint("192.0.2.1", new(false))),
			slice("headless", "headless", "", direct, discoveryv1.AddressTypeIPv4, endpoint("127.0.0.1", nil)),
			slice("other", "other", "", 1, discoveryv1.AddressTypeIPv4, endpoint("192.0.2.1", nil)),
		},
		endpoints: []*corev1.Endpoints{
			{ObjectMeta: named("mirrored"),
				Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "127.0.0.1"}},
					NotReadyAddresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}},
					Ports:             []corev1.EndpointPort{{Name: "x", Port: old}, {Name: "y", Port: 1}}}}},
			{ObjectMeta: named("web"), Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1"}}, Ports: []corev1.EndpointPort{{Port: 1}}}}},
		},
	}
	resolve := Resolver(w.objects())
	for _, c := range []struct {
		name string
		port int32
		want string
	}{{"web", 443, "direct"}, {"web", 80, "named"}, {"headless", 1, "direct"}, {"mirrored", 7, "old"},
		{"out", old, "old"}} {
		address, err := resolve(t.Context(), "n", c.name, c.port)
		if err != nil {
			t.Errorf("%s:%d: %v", c.name, c.port, err)
			continue
		}
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Errorf("%s:%d: %v", c.name, c.port, err)
			continue
		}
		got, err := io.ReadAll(conn)
		conn.Close()
		if err != nil || string(got) != c.want {
			t.Errorf("%s:%d at %s: %q %v, want %q", c.name, c.port, address, got, err, c.want)
		}
	}
}

// TestErrors checks the messages of resolution errors.
func TestErrors(t *testing.T) {
	w := &cluster{services: []*corev1.Service{service("web", corev1.ServiceTypeClusterIP,
		corev1.ServicePort{Port: 80})}}
	resolve := Resolver(w.objects())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		ctx             context.Context
		namespace, name string
		port            int32
		want            string
	}{
		{t.Context(), "n", "none", 443, `service "none" not found`},
		{t.Context(), "m", "web", 80, `service "web" not found`},
		{t.Context(), "n", "web", 443, `no service port 443 found for service "web"`},
		{t.Context(), "n", "web", 80, `no endpoints available for service "web"`},
		{t.Context(), "n", "", 80, `cannot resolve an empty service name or namespace or port`},
		{ended, "n", "web", 80, `context canceled`},
	} {
		if address, err := resolve(c.ctx, c.namespace, c.name, c.port); err == nil || err.Error() != c.want {
			t.Errorf("%s/%s:%d: %q %v, want %q", c.namespace, c.name, c.port, address, err, c.want)
		}
	}
}

// slicesOf implements the lister of EndpointSlices for upstream's resolver.
type slicesOf []*discoveryv1.EndpointSlice

func (s slicesOf) GetEndpointSlices(_, name string) ([]*discoveryv1.EndpointSlice, error) {
	var all []*discoveryv1.EndpointSlice
	for _, slice := range s {
		if slice.Labels[discoveryv1.LabelServiceName] == name {
			all = append(all, slice)
		}
	}
	return all, nil
}

// upstream calls upstream's resolver many times for a Service and returns the results.
func upstream(w *cluster, name string, port int32) map[string]bool {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, s := range w.services {
		_ = indexer.Add(s)
	}
	lister := listersv1.NewServiceLister(indexer)
	return results(func() (string, error) {
		u, err := proxy.ResolveEndpoint(lister, slicesOf(w.slices), "n", name, port)
		if err != nil {
			return "", err
		}
		return u.Host, nil
	})
}

func keys(m map[string]bool) []string { return slices.Sorted(maps.Keys(m)) }

// results collects the results of many calls, because resolvers choose an endpoint at random.
func results(resolve func() (string, error)) map[string]bool {
	all := map[string]bool{}
	for range 60 {
		answer, err := resolve()
		if err != nil {
			answer = err.Error()
		}
		all[answer] = true
	}
	return all
}

// TestAnswersAreUpstreams checks that, for EndpointSlices, the resolver returns the same addresses and errors as
// the upstream resolver.
func TestAnswersAreUpstreams(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	families := []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
	for range 60 {
		w := &cluster{services: []*corev1.Service{service("s", corev1.ServiceTypeClusterIP,
			corev1.ServicePort{Name: "a", Port: 1}, corev1.ServicePort{Name: "b", Port: 2})}}
		for i := range r.IntN(4) {
			family := families[r.IntN(2)]
			var all []discoveryv1.Endpoint
			for j := range r.IntN(3) {
				address := "192.0.2." + strconv.Itoa(10*i+j)
				if family == discoveryv1.AddressTypeIPv6 {
					address = "2001:db8::" + strconv.Itoa(10*i+j)
				}
				all = append(all, endpoint(address, []*bool{nil, new(true), new(false)}[r.IntN(3)]))
			}
			w.slices = append(w.slices, slice([]string{"s", "s", "other"}[r.IntN(3)], "s-"+strconv.Itoa(i),
				[]string{"a", "b"}[r.IntN(2)], int32(100+i), family, all...))
		}
		resolve := Resolver(w.objects())
		for _, port := range []int32{1, 2, 3} {
			want := upstream(w, "s", port)
			got := results(func() (string, error) { return resolve(t.Context(), "n", "s", port) })
			if strings.Join(keys(got), " ") != strings.Join(keys(want), " ") {
				t.Fatalf("%s\nport %d: got %v, upstream returns %v", marshal(w.slices), port, keys(got), keys(want))
			}
		}
	}
}
