package apiserver_test

import (
	"fmt"
	"net/netip"
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

// EXT-020: Services that are made at the same time get addresses and node ports of their own, each at the first try.
func TestServicesAtOnce(t *testing.T) {
	server := testserver.Start(t, testserver.With(func(c *apiserver.Config) { // hardly more than it takes
		c.ServiceClusterIPRanges, c.ServiceNodePortRange = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/26")}, utilnet.PortRange{Base: 30000, Size: 40}
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
				Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
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
	if len(ips) != 41 || len(ports) != 41 || !ips["10.0.0.1"] { // with the Service kubernetes, which has no node port
		t.Errorf("%d Services: %d addresses, %d node ports", len(all.Items), len(ips), len(ports))
	}
}

// The Service kubernetes has an endpoint where others reach the server. Else kube-proxy is told that it is not the one to answer: it
// would refuse. A server that is started again elsewhere says what is so then.
func TestServiceKubernetes(t *testing.T) {
	dir := t.TempDir()
	for _, address := range []string{"127.0.0.1:0", ":0", "127.0.0.1:0"} {
		server := testserver.Start(t, testserver.With(func(c *apiserver.Config) { c.Address, c.DataDir = address, dir }))
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
