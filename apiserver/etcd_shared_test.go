package apiserver_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// TestEtcdReadsOnEachReplica checks that a client can continue on another server: a list by its continue token, a list
// at a revision, and a watch. The second server has started later, so it reads these revisions from etcd.
func TestEtcdReadsOnEachReplica(t *testing.T) {
	e := storagetest.StartEtcd(t)
	_, first := replica(t, e.URL, "")
	for i := range 6 {
		_, err := first.CoreV1().ConfigMaps("default").Create(t.Context(), configMap(fmt.Sprint("m", i)),
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	page, err := first.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	err = first.CoreV1().ConfigMaps("default").Delete(t.Context(), "m3", metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, second := replica(t, e.URL, "")
	for name, c := range map[string]kubernetes.Interface{"first": first, "second": second} {
		maps := c.CoreV1().ConfigMaps("default")
		for _, o := range []metav1.ListOptions{{Continue: page.Continue}, {ResourceVersion: page.ResourceVersion,
			ResourceVersionMatch: metav1.ResourceVersionMatchExact}} {
			list, err := maps.List(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for i := range list.Items {
				names = append(names, list.Items[i].Name)
			}
			want := "m0 m1 m2 m3 m4 m5"
			if o.Continue != "" {
				want = "m2 m3 m4 m5"
			}
			if got := strings.Join(names, " "); got != want || list.ResourceVersion != page.ResourceVersion {
				t.Errorf("%s server, %+v: got %s at %s, want %s at %s", name, o, got, list.ResourceVersion, want,
					page.ResourceVersion)
			}
		}
		w, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: page.ResourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		if ev := <-w.ResultChan(); ev.Type != watch.Deleted || ev.Object.(*corev1.ConfigMap).Name != "m3" {
			t.Errorf("%s server: the watch has got %+v, want the deletion of m3", name, ev)
		}
		w.Stop()
	}
}

// TestEtcdLimitsAmongReplicas checks that two servers which create objects at the same time do not exceed a
// ResourceQuota, and give no node port and no cluster IP to two Services.
func TestEtcdLimitsAmongReplicas(t *testing.T) {
	e := storagetest.StartEtcd(t)
	clients := make([]kubernetes.Interface, 2)
	for i := range clients {
		clients[i] = quickClient(start(t, apiserver.Config{Etcd: etcd.Cluster{Servers: []string{e.URL}},
			Controllers: []string{"resourcequota-controller"}}).ClientConfig())
	}
	const hard = 10
	quotas := clients[0].CoreV1().ResourceQuotas("default")
	_, err := quotas.Create(t.Context(), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "few"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"configmaps": resource.MustParse("10")}}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "await the count of the quota", func(ctx context.Context) bool {
		q, err := quotas.Get(ctx, "few", metav1.GetOptions{})
		return err == nil && q.Status.Hard != nil
	})
	var created, port, ip atomic.Int32
	create := func(c kubernetes.Interface, round int) {
		for created.Load() < hard {
			_, err := c.CoreV1().ConfigMaps("default").Create(t.Context(),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}}, metav1.CreateOptions{})
			switch {
			case err == nil:
				created.Add(1)
			case !apierrors.IsForbidden(err) && !apierrors.IsConflict(err):
				t.Error(err)
				return
			}
		}
		for _, s := range []struct {
			count *atomic.Int32
			corev1.ServiceSpec
		}{
			{&port, corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort,
				Ports: []corev1.ServicePort{{Port: 80, NodePort: 31000 + int32(round)}}}},
			{&ip, corev1.ServiceSpec{ClusterIP: fmt.Sprint("10.0.0.", 3+round),
				Ports: []corev1.ServicePort{{Port: 80}}}},
		} {
			_, err := c.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}, Spec: s.ServiceSpec}, metav1.CreateOptions{})
			if err == nil {
				s.count.Add(1)
			} else if !apierrors.IsInvalid(err) {
				t.Error(err)
			}
		}
	}
	const rounds = 10
	for round := range rounds {
		var creating sync.WaitGroup
		for _, c := range clients {
			for range 4 {
				creating.Go(func() { create(c, round) })
			}
		}
		creating.Wait()
	}
	list, err := clients[1].CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != hard || created.Load() != hard {
		t.Errorf("got %d of %d ConfigMaps, %v, want %d", len(list.Items), created.Load(), err, hard)
	}
	if port.Load() != rounds || ip.Load() != rounds {
		t.Errorf("created %d Services with %d node ports, and %d with %d cluster IPs", port.Load(), rounds, ip.Load(),
			rounds)
	}
}
