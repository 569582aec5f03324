package apiserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/pki"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// onEtcd starts a server that stores its objects in etcd, and returns the server and a client.
func onEtcd(t *testing.T, e *storagetest.Etcd) (*apiserver.Server, corev1client.ConfigMapInterface) {
	t.Helper()
	// no controller that creates ConfigMaps
	s := start(t, apiserver.Config{Etcd: etcd.Cluster{Servers: []string{e.URL}},
		Controllers: []string{"clusterrole-aggregation-controller"}})
	config := s.ClientConfig()
	config.QPS = -1
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return s, core.ConfigMaps("default")
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// TestEtcdRestart checks that a server reads the objects that an earlier server has stored in etcd. It also checks
// that the objects have the same keys and the same form in etcd as with kube-apiserver.
func TestEtcdRestart(t *testing.T) {
	e := storagetest.StartEtcd(t)
	s, maps := onEtcd(t, e)
	made, err := maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	text := (&caller{t, s, client(t, s)}).want(200, "GET", "/metrics", "")
	for _, line := range []string{"trellis_storage_servers 1", "trellis_storage_watchers ",
		"trellis_storage_history_events ", "trellis_storage_history_bytes ", "trellis_storage_oldest_revision ",
		"trellis_storage_barrier_duration_seconds_count "} {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("/metrics has no line %q", line)
		}
	}
	if err := s.Shutdown(); err != nil {
		t.Fatal(err)
	}
	raw, err := etcd.Open(t.Context(), etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL},
		Prefix: "/registry/"}})
	if err != nil {
		t.Fatal(err)
	}
	if r := raw.Head().Get("configmaps/default/a"); r == nil ||
		!strings.HasPrefix(string(r.Value), "k8s\x00") {
		t.Errorf("%+v", r)
	}
	if err := raw.Close(); err != nil {
		t.Fatal(err)
	}
	_, maps = onEtcd(t, e)
	got, err := maps.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || got.UID != made.UID || got.ResourceVersion != made.ResourceVersion {
		t.Errorf("%+v, %v", got, err)
	}
	large := configMap("large")
	large.Data = map[string]string{"x": strings.Repeat("x", 1600<<10)}
	if _, err := maps.Create(t.Context(), large,
		metav1.CreateOptions{}); !apierrors.IsRequestEntityTooLargeError(err) && !apierrors.IsInvalid(err) {
		t.Errorf("a large object: %v", err)
	}
}

// TestEtcdOverTLS checks the connection to an etcd that requires TLS and client certificates (--etcd-cafile,
// --etcd-certfile, --etcd-keyfile).
func TestEtcdOverTLS(t *testing.T) {
	dir := t.TempDir()
	if _, err := pki.Ensure(dir, []string{"127.0.0.1"}, time.Now()); err != nil {
		t.Fatal(err)
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	e := storagetest.StartEtcd(t, "--client-cert-auth", "--trusted-ca-file="+file("ca.crt"),
		"--cert-file="+file("apiserver.crt"), "--key-file="+file("apiserver.key"))
	c := apiserver.Config{Etcd: etcd.Cluster{Servers: []string{e.URL}, CAFile: file("ca.crt"),
		CertFile: file("admin.crt"), KeyFile: file("admin.key")}}
	s := start(t, c)
	resp, err := client(t, s).Get(s.URL() + "/readyz")
	body(t, resp, err, http.StatusOK)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	c.Etcd.CertFile, c.Etcd.KeyFile = "", ""
	if s, err := apiserver.Start(ctx, c); err == nil {
		_ = s.Shutdown()
		t.Error("the server started without a client certificate")
	}
	for _, lacks := range []etcd.Cluster{{CAFile: file("none")}, {CAFile: file("ca.key")},
		{CertFile: file("admin.crt"), KeyFile: file("none")}} {
		lacks.Servers = c.Etcd.Servers
		if s, err := apiserver.Start(t.Context(), apiserver.Config{Etcd: lacks}); err == nil ||
			!strings.Contains(err.Error(), "etcd") {
			t.Errorf("%+v: %v", lacks, err)
			if err == nil {
				_ = s.Shutdown()
			}
		}
	}
}

// TestControllersAreElectedOnEtcd checks that controllers use the Lease of kube-controller-manager only if another
// server may use the same etcd.
func TestControllersAreElectedOnEtcd(t *testing.T) {
	for _, c := range []apiserver.Config{{}, {Etcd: etcd.Cluster{Servers: []string{storagetest.StartEtcd(t).URL}}}} {
		config := start(t, c).ClientConfig()
		client := kubernetes.NewForConfigOrDie(config)
		w, err := client.CoreV1().ServiceAccounts("default").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if ev := <-w.ResultChan(); ev.Type != watch.Added { // created by a controller
			t.Fatalf("%+v", ev)
		}
		w.Stop()
		lease, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), "kube-controller-manager",
			metav1.GetOptions{})
		switch {
		case c.Etcd.Servers == nil && !apierrors.IsNotFound(err):
			t.Errorf("embedded store: got a Lease %v, %v", lease, err)
		case c.Etcd.Servers != nil && (err != nil || *lease.Spec.HolderIdentity == ""):
			t.Errorf("on etcd: %+v, %v", lease, err)
		}
	}
}

// TestEtcdKilled checks that requests fail with a storage error while etcd is down, and reads from memory after the
// registration of the server has expired. After a restart of etcd they succeed, and no watch has lost or repeated an
// event.
func TestEtcdKilled(t *testing.T) {
	e := storagetest.StartEtcd(t)
	s, maps := onEtcd(t, e)
	seen := make(chan string, 1000)
	go follow(t, maps, seen)
	if got := <-seen; got != "began" {
		t.Fatal(got)
	}
	next := 0
	create := func() error {
		_, err := maps.Create(t.Context(), configMap(fmt.Sprintf("m%03d", next)), metav1.CreateOptions{})
		return err
	}
	for range 2 {
		for range 20 {
			if err := create(); err != nil {
				t.Fatal(err)
			}
			next++
		}
		e.Kill()
		var requests sync.WaitGroup
		for _, path := range []string{"/api/v1/namespaces/default/configmaps/m000", "/api/v1/configmaps",
			"/api/v1/configmaps?watch=1", "/apis/un.known/v1/things"} {
			requests.Go(func() { expectUnavailable(t, s, http.MethodGet, path, "") })
		}
		requests.Go(func() {
			expectUnavailable(t, s, http.MethodPost, "/api/v1/namespaces/default/configmaps",
				fmt.Sprintf(`{"metadata":{"name":"m%03d"}}`, next))
		})
		requests.Wait()
		// reads from memory end with the registration of the server
		for status := http.StatusOK; status == http.StatusOK; {
			resp, err := client(t, s).Get(s.URL() + "/api/v1/namespaces/default/configmaps?resourceVersion=0")
			if err != nil {
				t.Fatal(err)
			}
			var list corev1.ConfigMapList
			err = json.NewDecoder(resp.Body).Decode(&list)
			_ = resp.Body.Close()
			if status = resp.StatusCode; err != nil || status == http.StatusOK && len(list.Items) != next {
				t.Fatalf("list from memory: got status %d, %d of %d items, %v", status, len(list.Items), next, err)
			}
		}
		expectUnavailable(t, s, http.MethodGet, "/api/v1/configmaps?resourceVersion=0", "")
		resp, err := client(t, s).Get(s.URL() + "/readyz")
		if text := body(t, resp, err, http.StatusInternalServerError); !strings.Contains(text, "storage") {
			t.Errorf("readyz: %s", text)
		}
		e.Start()
		// the write with unknown outcome may have succeeded
		for err := create(); err != nil && !apierrors.IsAlreadyExists(err); err = create() {
			if !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) {
				t.Fatal(err)
			}
		}
		next++
	}
	for i := range next {
		select {
		case got := <-seen:
			if want := fmt.Sprintf("ADDED m%03d", i); got != want {
				t.Fatalf("seen %q, want %q", got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("got %d of %d events", i, next)
		}
	}
}

// expectUnavailable sends a request and checks that it fails because the storage is unavailable.
func expectUnavailable(t *testing.T, s *apiserver.Server, method, path, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, strings.NewReader(text))
	if err != nil {
		t.Error(err)
		return
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := client(t, s).Do(r)
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	response, _ := io.ReadAll(resp.Body)
	switch resp.StatusCode {
	case http.StatusServiceUnavailable:
		if !strings.Contains(string(response), "the server's storage is unavailable") {
			t.Errorf("%s %s: %s", method, path, response)
		}
	case http.StatusGatewayTimeout: // possible for a write
		if method == http.MethodGet || !strings.Contains(string(response), "the outcome of the write is unknown") {
			t.Errorf("%s %s: %s", method, path, response)
		}
	default:
		t.Errorf("%s %s: %d %s", method, path, resp.StatusCode, response)
	}
}

// follow watches ConfigMaps and sends the events to seen. When a watch ends, it starts the next watch at the last
// resource version.
func follow(t *testing.T, maps corev1client.ConfigMapInterface, seen chan<- string) {
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		seen <- err.Error()
		return
	}
	revision := list.ResourceVersion
	seen <- "began"
	for t.Context().Err() == nil {
		w, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: revision})
		if err != nil {
			continue // etcd is not back yet
		}
		for ev := range w.ResultChan() {
			m, ok := ev.Object.(*corev1.ConfigMap)
			if !ok {
				seen <- fmt.Sprintf("%s %v", ev.Type, ev.Object)
				return
			}
			revision = m.ResourceVersion
			seen <- fmt.Sprintf("%s %s", ev.Type, m.Name)
		}
	}
}

// TestEtcdCompacted checks that a running watch continues after a compaction, and that a new watch at a compacted
// revision gets the status Expired.
func TestEtcdCompacted(t *testing.T) {
	e := storagetest.StartEtcd(t)
	_, maps := onEtcd(t, e)
	first, err := maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	running, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: first.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer running.Stop()
	second, err := maps.Create(t.Context(), configMap("b"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	compact(t, e, second.ResourceVersion)
	if _, err := maps.Create(t.Context(), configMap("c"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"b", "c"} {
		if ev := <-running.ResultChan(); ev.Type != watch.Added || ev.Object.(*corev1.ConfigMap).Name != want {
			t.Fatalf("%+v, want %s", ev, want)
		}
	}
	_, other := onEtcd(t, e) // has no history in memory
	late, err := other.Watch(t.Context(), metav1.ListOptions{ResourceVersion: first.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer late.Stop()
	if ev := <-late.ResultChan(); ev.Type != watch.Error ||
		!apierrors.IsResourceExpired(apierrors.FromObject(ev.Object)) {
		t.Errorf("a watch at a compacted revision: %+v", ev)
	}
	_, err = other.List(t.Context(), metav1.ListOptions{ResourceVersion: first.ResourceVersion,
		ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("a list at a compacted revision: %v", err)
	}
}

// compact compacts etcd up to a resource version.
func compact(t *testing.T, e *storagetest.Etcd, resourceVersion string) {
	t.Helper()
	revision, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	s, err := etcd.Open(t.Context(), etcd.Options{Cluster: etcd.Cluster{Servers: []string{e.URL},
		Prefix: "/registry/"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Compact(context.Background(), revision); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
