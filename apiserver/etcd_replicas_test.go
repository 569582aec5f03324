package apiserver_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/fixture/kubeapiserver"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// replica starts a server on etcd that advertises an address. "" is the address 127.0.0.1, which it does not advertise.
func replica(t *testing.T, etcdURL, advertise string) (*apiserver.Server, kubernetes.Interface) {
	t.Helper()
	s := start(t, apiserver.Config{Etcd: etcd.Cluster{Servers: []string{etcdURL}},
		AdvertiseAddress: net.ParseIP(advertise), Controllers: []string{"clusterrole-aggregation-controller"}})
	return s, quickClient(s.ClientConfig())
}

func quickClient(c *rest.Config) kubernetes.Interface {
	c.QPS = -1
	return kubernetes.NewForConfigOrDie(c)
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func(ctx context.Context) bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) { return holds(ctx), nil }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// endpointsOf returns the addresses in the Endpoints of the Service kubernetes, sorted.
func endpointsOf(ctx context.Context, t *testing.T, c kubernetes.Interface) (ips []string) {
	t.Helper()
	endpoints, err := c.CoreV1().Endpoints("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	for _, s := range endpoints.Subsets {
		for _, a := range s.Addresses {
			ips = append(ips, a.IP)
		}
	}
	slices.Sort(ips)
	return ips
}

// awaitEndpoints waits until the Endpoints and the EndpointSlice of the Service kubernetes have exactly these
// addresses, and the Service has the label for a proxy only if there are none.
func awaitEndpoints(t *testing.T, c kubernetes.Interface, want ...string) {
	t.Helper()
	var got, sliced []string
	var labelled bool
	defer func() {
		if t.Failed() {
			t.Logf("endpoints %v, in the slice %v, labelled %t", got, sliced, labelled)
		}
	}()
	eventually(t, fmt.Sprintf("await the endpoints %v", want), func(ctx context.Context) bool {
		got, sliced = endpointsOf(ctx, t, c), nil
		slice, err := c.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err == nil {
			for _, e := range slice.Endpoints {
				sliced = append(sliced, e.Addresses...)
			}
		}
		slices.Sort(sliced)
		service, err := c.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		_, labelled = service.Labels["service.kubernetes.io/service-proxy-name"]
		return err == nil && slices.Equal(got, want) && slices.Equal(sliced, want) && labelled == (len(want) == 0)
	})
}

// link is a connection to etcd that a test can cut.
type link struct {
	url string

	mu    sync.Mutex
	cut   bool
	conns []net.Conn
}

// newLink returns a link to the etcd at a URL.
func newLink(t *testing.T, etcdURL string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{url: "http://" + listener.Addr().String()}
	t.Cleanup(func() { _ = listener.Close(); l.set(true) })
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", strings.TrimPrefix(etcdURL, "http://"))
			if err != nil {
				_ = in.Close()
				continue
			}
			l.mu.Lock()
			l.conns = append(l.conns, in, out)
			l.mu.Unlock()
			l.set(l.isCut())
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				}()
			}
		}
	}()
	return l
}

func (l *link) isCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut
}

// set cuts or restores the link.
func (l *link) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		for _, c := range l.conns {
			_ = c.Close()
		}
		l.conns = nil
	}
}

// TestEtcdEndpoints checks that the endpoints of the Service kubernetes are the addresses of the running servers that
// other machines can reach. A server that shuts down removes its address. The address of a server that has lost etcd
// expires.
func TestEtcdEndpoints(t *testing.T) {
	e := storagetest.StartEtcd(t)
	hidden, c := replica(t, e.URL, "")
	awaitEndpoints(t, c)
	first, firstClient := replica(t, e.URL, "10.0.2.1")
	awaitEndpoints(t, c, "10.0.2.1")
	broken := newLink(t, e.URL)
	replica(t, broken.url, "10.0.2.2")
	awaitEndpoints(t, c, "10.0.2.1", "10.0.2.2")
	third, _ := replica(t, e.URL, "10.0.2.3")
	awaitEndpoints(t, c, "10.0.2.1", "10.0.2.2", "10.0.2.3")
	replica(t, e.URL, "") // keeps the endpoints of the others
	if got := endpointsOf(t.Context(), t, c); len(got) != 3 {
		t.Errorf("got the endpoints %v after the start of a server without an address", got)
	}
	if err := hidden.Shutdown(); err != nil {
		t.Fatal(err)
	}
	broken.set(true)
	if err := third.Shutdown(); err != nil {
		t.Fatal(err)
	}
	if got := endpointsOf(t.Context(), t, firstClient); slices.Contains(got, "10.0.2.3") {
		t.Errorf("got the endpoints %v after the end of a server", got)
	}
	awaitEndpoints(t, firstClient, "10.0.2.1")
	broken.set(false)
	awaitEndpoints(t, firstClient, "10.0.2.1", "10.0.2.2")
	broken.set(true)
	_, last := replica(t, e.URL, "")
	if err := first.Shutdown(); err != nil {
		t.Fatal(err)
	}
	awaitEndpoints(t, last)
}

// TestEtcdEndpointDuringShutdownDelay checks that a server removes its address at the beginning of
// --shutdown-delay-duration, while it still serves.
func TestEtcdEndpointDuringShutdownDelay(t *testing.T) {
	e, clock := storagetest.StartEtcd(t), testclock.NewFakeClock(time.Now())
	_, c := replica(t, e.URL, "10.0.2.1")
	ending := start(t, apiserver.Config{Etcd: etcd.Cluster{Servers: []string{e.URL}}, ShutdownDelay: time.Hour,
		AdvertiseAddress: net.ParseIP("10.0.2.2"), Controllers: []string{"-*"}, Clock: clock})
	awaitEndpoints(t, c, "10.0.2.1", "10.0.2.2")
	admin, expires := etcdClient(t, clientv3.Config{Endpoints: []string{e.URL}}), time.Time{}
	eventually(t, "the server renews its address", func(ctx context.Context) bool {
		address, err := admin.Get(ctx, kinds.ServerAddresses+"10.0.2.2")
		if err != nil || len(address.Kvs) == 0 {
			return false
		}
		now := time.Now()
		lease, err := admin.TimeToLive(ctx, clientv3.LeaseID(address.Kvs[0].Lease))
		if err != nil || lease.TTL < 10 {
			return false
		}
		expires = now.Add(time.Duration(lease.TTL) * time.Second)
		return true
	})
	down := make(chan error, 1)
	go func() { down <- ending.Shutdown() }()
	awaitEndpoints(t, c, "10.0.2.1")
	if late := time.Since(expires); late > 0 {
		t.Errorf("the address may have expired %v ago", late)
	}
	if _, err := quickClient(ending.ClientConfig()).Discovery().ServerVersion(); err != nil {
		t.Errorf("the server does not serve during the delay: %v", err)
	}
	for {
		clock.Step(time.Hour)
		select {
		case err := <-down:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestEtcdBesideKubeAPIServer checks that Trellis and kube-apiserver on the same etcd agree on the endpoints of the
// Service kubernetes, and that the Leases of both have the same form.
func TestEtcdBesideKubeAPIServer(t *testing.T) {
	e := storagetest.StartEtcd(t)
	upstream := kubeapiserver.New(t, e)
	server, own := replica(t, e.URL, "10.0.2.1")
	other := quickClient(&rest.Config{Host: upstream.Start("--service-cluster-ip-range=10.0.0.0/24",
		"--advertise-address=10.0.2.9"), BearerToken: kubeapiserver.Token,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	for _, c := range []kubernetes.Interface{own, other} {
		awaitEndpoints(t, c, "10.0.2.1", "10.0.2.9")
	}
	raw, err := etcd.Open(t.Context(), etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL},
		Prefix: "/registry/"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, ip := range []string{"10.0.2.1", "10.0.2.9"} {
		if r := raw.Head().Get("masterleases/" + ip); r == nil || !strings.HasPrefix(string(r.Value), "k8s\x00") {
			t.Errorf("got %+v in etcd for the address %s, want protobuf", r, ip)
		}
	}
	if err := raw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := server.Shutdown(); err != nil {
		t.Fatal(err)
	}
	awaitEndpoints(t, other, "10.0.2.9")
	theirs := awaitIdentity(t, other)
	_, own = replica(t, e.URL, "10.0.2.2")
	for _, c := range []kubernetes.Interface{own, other} {
		awaitEndpoints(t, c, "10.0.2.2", "10.0.2.9")
	}
	upstream.Stop()
	awaitEndpoints(t, own, "10.0.2.2")
	for _, l := range []*coordinationv1.Lease{theirs, awaitIdentity(t, own)} {
		prefix, _, _ := strings.Cut(*l.Spec.HolderIdentity, "_")
		if prefix != l.Name || l.Name != theirs.Name || !reflect.DeepEqual(l.Labels, theirs.Labels) ||
			*l.Spec.LeaseDurationSeconds != *theirs.Spec.LeaseDurationSeconds {
			t.Errorf("got the Lease %+v, kube-apiserver has %+v", l, theirs)
		}
	}
}

// awaitIdentity waits until there is exactly one Lease of an API server, and returns it.
func awaitIdentity(t *testing.T, c kubernetes.Interface) (found *coordinationv1.Lease) {
	t.Helper()
	eventually(t, "await the Lease of an API server", func(ctx context.Context) bool {
		list, err := c.CoordinationV1().Leases("kube-system").List(ctx, metav1.ListOptions{
			LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
		if err != nil || len(list.Items) != 1 {
			return false
		}
		found = &list.Items[0]
		return true
	})
	return found
}

var crdResource = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// createCRD creates a CRD and returns it.
func createCRD(t *testing.T, c *rest.Config) *unstructured.Unstructured {
	t.Helper()
	crd, err := dynamic.NewForConfigOrDie(c).Resource(crdResource).Create(t.Context(), &unstructured.Unstructured{
		Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": "things.example.com"},
			"spec": map[string]any{
				"group": "example.com", "scope": "Namespaced",
				"names": map[string]any{"plural": "things", "kind": "Thing"},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
			},
		}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return crd
}

// TestEtcdLeaderIsLost checks that another server takes over the controllers when the leader has lost etcd. The new
// leader finishes a deletion that the old one has not seen, and a storage migration that has begun before.
func TestEtcdLeaderIsLost(t *testing.T) {
	e := storagetest.StartEtcd(t)
	broken := newLink(t, e.URL)
	replica(t, broken.url, "")
	other, c := replica(t, e.URL, "")
	replica(t, e.URL, "")
	leader := func(ctx context.Context) string {
		l, err := c.CoordinationV1().Leases("kube-system").Get(ctx, "kube-controller-manager", metav1.GetOptions{})
		if err != nil {
			return ""
		}
		return ptr.Deref(l.Spec.HolderIdentity, "")
	}
	was := ""
	eventually(t, "await a leader", func(ctx context.Context) bool { was = leader(ctx); return was != "" })
	spaces := c.CoreV1().Namespaces()
	for _, name := range []string{"a", "b"} {
		if _, err := spaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := c.CoreV1().ConfigMaps(name).Create(t.Context(), configMap("m"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		if err := spaces.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "await the end of the namespace "+name, func(ctx context.Context) bool {
			_, err := spaces.Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
	remove("a")
	crds := dynamic.NewForConfigOrDie(other.ClientConfig()).Resource(crdResource)
	crd := createCRD(t, other.ClientConfig())
	conditions, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
	conditions = append(conditions, map[string]any{"type": "StorageMigrating", "status": "True", "reason": "Test",
		"message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
	if err := unstructured.SetNestedSlice(crd.Object, conditions, "status", "conditions"); err != nil {
		t.Fatal(err)
	}
	if _, err := crds.UpdateStatus(t.Context(), crd, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if is := leader(t.Context()); is != was {
		t.Fatalf("%q leads instead of %q before the leader is lost", is, was)
	}
	broken.set(true)
	remove("b")
	is := leader(t.Context())
	if is == was || is == "" {
		t.Errorf("%q still leads", is)
	}
	eventually(t, "await the end of the migration", func(ctx context.Context) bool {
		crd, err := crds.Get(ctx, crd.GetName(), metav1.GetOptions{})
		if err != nil {
			return false
		}
		list, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
		return slices.ContainsFunc(list, func(c any) bool {
			m := c.(map[string]any)
			return m["type"] == "StorageMigrating" && m["reason"] == "StorageVersionMigrationDeleted"
		})
	})
}

// TestEtcdConcurrentStart checks that several servers can start on an empty etcd at the same time. The default objects
// are then the same as those of one server.
func TestEtcdConcurrentStart(t *testing.T) {
	e := storagetest.StartEtcd(t)
	want := defaultObjects(t, quickClient(start(t, apiserver.Config{
		Controllers: []string{"clusterrole-aggregation-controller"}}).ClientConfig()))
	for round := range 4 {
		servers := make([]*apiserver.Server, 3)
		var starting sync.WaitGroup
		for i := range servers {
			starting.Go(func() {
				s, err := apiserver.Start(t.Context(), apiserver.Config{Etcd: etcd.Cluster{Servers: []string{e.URL},
					Prefix: fmt.Sprintf("/round-%d", round)}, AdvertiseAddress: net.IPv4(10, 0, 2, byte(i+1)),
					Controllers: []string{"clusterrole-aggregation-controller"}})
				if err != nil {
					t.Error(err)
					return
				}
				servers[i] = s
			})
		}
		starting.Wait()
		for _, s := range servers {
			if s == nil {
				continue
			}
			resp, err := client(t, s).Get(s.URL() + "/readyz")
			body(t, resp, err, http.StatusOK)
			if got := defaultObjects(t, quickClient(s.ClientConfig())); !slices.Equal(got, want) {
				t.Errorf("got the default objects %v, want %v", got, want)
			}
		}
		for _, s := range servers {
			if s != nil {
				_ = s.Shutdown()
			}
		}
	}
}

// defaultObjects returns the kinds and names of the objects that a server creates at its start.
func defaultObjects(t *testing.T, c kubernetes.Interface) (names []string) {
	t.Helper()
	for _, path := range []string{"/api/v1/namespaces", "/api/v1/services",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		"/apis/rbac.authorization.k8s.io/v1/roles", "/apis/rbac.authorization.k8s.io/v1/rolebindings",
		"/apis/scheduling.k8s.io/v1/priorityclasses", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
		"/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
		"/apis/networking.k8s.io/v1/servicecidrs", "/apis/networking.k8s.io/v1/ipaddresses"} {
		list := &unstructured.UnstructuredList{}
		raw, err := c.CoreV1().RESTClient().Get().AbsPath(path).Do(t.Context()).Raw()
		if err == nil {
			err = list.UnmarshalJSON(raw)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			names = append(names, path+"/"+list.Items[i].GetName())
		}
	}
	return names
}

// TestEtcdIdleReplicas checks that three idle servers write nothing except their Leases: no two servers correct each
// other.
func TestEtcdIdleReplicas(t *testing.T) {
	e := storagetest.StartEtcd(t)
	var servers []*apiserver.Server
	for i := range 3 {
		s, _ := replica(t, e.URL, fmt.Sprintf("10.0.2.%d", i+1))
		servers = append(servers, s)
	}
	config := servers[0].ClientConfig()
	config.QPS = -1
	createCRD(t, config)
	dyn := dynamic.NewForConfigOrDie(config)
	unavailable := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1.unavailable.example.com"},
		"spec": map[string]any{"group": "unavailable.example.com", "version": "v1", "groupPriorityMinimum": int64(100),
			"versionPriority": int64(100), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": "default", "name": "none"}},
	}}
	services := schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	if _, err := dyn.Resource(services).Create(t.Context(), unavailable, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitEndpoints(t, quickClient(config), "10.0.2.1", "10.0.2.2", "10.0.2.3")
	for attempt := 1; ; attempt++ {
		writes := writesIn(t, dyn, 12)
		if len(writes) == 0 {
			return
		}
		if attempt == 4 {
			t.Fatalf("idle servers write: %v", writes)
		}
	}
}

// writesIn returns the changes of objects within some seconds.
func writesIn(t *testing.T, dyn dynamic.Interface, seconds int64) (writes []string) {
	t.Helper()
	var mu sync.Mutex
	var watching sync.WaitGroup
	for _, r := range []schema.GroupVersionResource{
		crdResource, {Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "flowschemas"},
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "prioritylevelconfigurations"},
		{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"},
		{Group: "networking.k8s.io", Version: "v1", Resource: "ipaddresses"},
		{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
		{Version: "v1", Resource: "configmaps"}, {Version: "v1", Resource: "services"},
		{Version: "v1", Resource: "endpoints"}, {Version: "v1", Resource: "namespaces"},
	} {
		list, err := dyn.Resource(r).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := dyn.Resource(r).Watch(t.Context(), metav1.ListOptions{
			ResourceVersion: list.GetResourceVersion(), TimeoutSeconds: &seconds})
		if err != nil {
			t.Fatal(err)
		}
		watching.Go(func() {
			for ev := range w.ResultChan() {
				name, _ := meta.Accessor(ev.Object)
				mu.Lock()
				writes = append(writes, fmt.Sprint(r.Resource, " ", name.GetName(), " ", ev.Type))
				mu.Unlock()
			}
		})
	}
	watching.Wait()
	return writes
}
