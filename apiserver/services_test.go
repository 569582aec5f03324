package apiserver_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

// TestConcurrentServices checks that Services that are created concurrently get distinct cluster IPs and node ports,
// each at the first attempt. (EXT-020)
func TestConcurrentServices(t *testing.T) {
	server := testserver.Start(t, testserver.With(func(c *apiserver.Config) { // just enough addresses and ports
		c.ServiceClusterIPRanges, c.ServiceNodePortRange = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/26")},
			utilnet.PortRange{Base: 30000, Size: 40}
	}))
	client, err := corev1client.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	services := client.Services(metav1.NamespaceDefault)
	var wait sync.WaitGroup
	for i := range 40 {
		wait.Go(func() {
			_, err := services.Create(t.Context(), &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s-%d", i)},
				Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
					Ports: []corev1.ServicePort{{Port: 80}}},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	all, err := services.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ips, ports := map[string]bool{}, map[int32]bool{}
	for _, s := range all.Items {
		ips[s.Spec.ClusterIP] = true
		ports[s.Spec.Ports[0].NodePort] = true
	}
	if len(ips) != 41 || len(ports) != 41 || !ips["10.0.0.1"] { // with the Service kubernetes, whose node port is 0
		t.Errorf("%d Services: %d addresses, %d node ports", len(all.Items), len(ips), len(ports))
	}
}

// TestServiceKubernetes checks that the Service kubernetes has an endpoint if other machines can reach the server.
// Otherwise it has the label that makes kube-proxy ignore it. A restart with another address updates both.
func TestServiceKubernetes(t *testing.T) {
	dir := t.TempDir()
	for _, address := range []string{"127.0.0.1:0", ":0", "127.0.0.1:0"} {
		server := testserver.Start(t, testserver.With(func(c *apiserver.Config) {
			c.Address, c.DataDir = address, dir
		}))
		client, err := kubernetes.NewForConfig(server.Config)
		if err != nil {
			t.Fatal(err)
		}
		service, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		slices, err := client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		_, left := service.Labels["service.kubernetes.io/service-proxy-name"]
		if there := len(slices.Items) == 1; there != (address == ":0") || left == there {
			t.Errorf("at %s its labels are %v, its endpoints %v", address, service.Labels, slices.Items)
		}
		server.Stop()
	}
}

// TestIdentityLease checks that a server has a Lease, which it replaces at each start.
func TestIdentityLease(t *testing.T) {
	dir, holders := t.TempDir(), map[string]bool{}
	for range 2 {
		server := testserver.Start(t, testserver.With(func(c *apiserver.Config) { c.DataDir = dir }))
		holders[*awaitIdentity(t, kubernetes.NewForConfigOrDie(server.Config)).Spec.HolderIdentity] = true
		server.Stop()
	}
	if len(holders) != 2 {
		t.Errorf("got the holders %v, want two", holders)
	}
}

// TestAdvertisedAddress checks the server addresses in /api. The first is the endpoint of the Service kubernetes, or
// the listening address if no other machine can reach the server. Clients with an address in the Service range also get
// the cluster IP. The server's certificate is valid for both, and for no unspecified address. (HPX-004)
func TestAdvertisedAddress(t *testing.T) {
	for _, c := range []struct {
		listen, advertise, want string // the host; "" means any address of this machine
	}{
		{"127.0.0.1:0", "", "127.0.0.1"}, {":0", "", ""}, {"127.0.0.1:0", "10.0.2.15", "10.0.2.15"}, {":0",
			"2001:db8::1", "2001:db8::1"},
		{"127.0.0.1:0", "0.0.0.0", "127.0.0.1"}, {":0", "::", ""}, {"127.0.0.1:0", "127.0.0.1", "127.0.0.1"},
	} {
		server := testserver.Start(t, testserver.With(func(config *apiserver.Config) {
			config.Address, config.AdvertiseAddress = c.listen, net.ParseIP(c.advertise)
		}))
		client := kubernetes.NewForConfigOrDie(server.Config)
		discover := func(from string) []metav1.ServerAddressByClientCIDR {
			var versions metav1.APIVersions
			text, err := client.RESTClient().Get().AbsPath("/api").SetHeader("X-Forwarded-For", from).
				Do(t.Context()).Raw()
			if err == nil {
				err = json.Unmarshal(text, &versions)
			}
			if err != nil || len(versions.ServerAddressByClientCIDRs) == 0 {
				t.Fatalf("%v: %v %s", c, err, text)
			}
			return versions.ServerAddressByClientCIDRs
		}
		is := discover("192.0.2.7")
		host, _, err := net.SplitHostPort(is[0].ServerAddress)
		if err != nil || len(is) != 1 || is[0].ClientCIDR != "0.0.0.0/0" || c.want != "" && host != c.want {
			t.Errorf("%v: %v, %v", c, is, err)
		}
		slice, err := client.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err == nil {
			endpoint := net.JoinHostPort(slice.Endpoints[0].Addresses[0], strconv.Itoa(int(*slice.Ports[0].Port)))
			if endpoint != is[0].ServerAddress {
				t.Errorf("%v: /api has %s, the Service has %s", c, is[0].ServerAddress, endpoint)
			}
		} else if host != "127.0.0.1" {
			t.Errorf("%v: no endpoint: %v", c, err)
		}
		if is = discover("10.0.0.77"); len(is) != 2 ||
			is[1] != (metav1.ServerAddressByClientCIDR{ClientCIDR: "10.0.0.0/24", ServerAddress: "10.0.0.1:443"}) {
			t.Errorf("%v: to a client in the range of Services: %v", c, is)
		}
		u, err := url.Parse(server.Config.Host)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{host, "10.0.0.1"} {
			if err := shown(t, u.Host, "").VerifyHostname(name); err != nil {
				t.Errorf("%v: %v", c, err)
			}
		}
		for _, name := range []string{"0.0.0.0", "::"} { // the unspecified addresses
			if shown(t, u.Host, "").VerifyHostname(name) == nil {
				t.Errorf("%v: the certificate is for %s", c, name)
			}
		}
		server.Stop()
	}
}
