package server

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// testTimeout is the maximum time that a test waits for a condition.
const testTimeout = time.Minute

var leaseLabels = map[string]string{"k8s-app": "konnectivity-server"}

func newLeaseManager(c kubernetes.Interface) *leaseManager {
	return &leaseManager{
		Lease:   Lease{Client: c, Namespace: "kube-system", Labels: leaseLabels, Addresses: []string{"192.0.2.1:8132"}},
		metrics: New(Options{}).metrics, logger: slog.New(slog.DiscardHandler), clock: clock.RealClock{},
	}
}

// waitFor blocks until a condition holds, and fails the test after testTimeout.
func waitFor(t *testing.T, condition string, holds func() bool) {
	t.Helper()
	poll := func(context.Context) (bool, error) { return holds(), nil }
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, testTimeout, true, poll); err != nil {
		t.Fatalf("condition not met: %s: %v", condition, err)
	}
}

// TestExpiredLeases checks that only expired Leases with the server's labels are deleted (KON-055).
func TestExpiredLeases(t *testing.T) {
	ago := func(d time.Duration) *metav1.MicroTime { return &metav1.MicroTime{Time: time.Now().Add(-d)} }
	var all []*coordinationv1.Lease
	for name, spec := range map[string]coordinationv1.LeaseSpec{
		"renewed": {LeaseDurationSeconds: ptr.To[int32](30), AcquireTime: ago(time.Hour),
			RenewTime: ago(time.Second)},
		"acquired":      {LeaseDurationSeconds: ptr.To[int32](30), AcquireTime: ago(time.Second)},
		"old":           {LeaseDurationSeconds: ptr.To[int32](30), RenewTime: ago(time.Minute)},
		"without times": {LeaseDurationSeconds: ptr.To[int32](30)},
		"without end":   {RenewTime: ago(time.Second)},
	} {
		all = append(all, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "kube-system",
			Labels: leaseLabels}, Spec: spec})
	}
	client := fake.NewClientset(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "other",
		Namespace: "kube-system"}})
	for _, l := range all {
		if err := client.Tracker().Add(l); err != nil {
			t.Fatal(err)
		}
	}
	l := newLeaseManager(client)
	l.cull(t.Context())
	left, err := client.CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names := sets.New[string]()
	for _, one := range left.Items {
		names.Insert(one.Name)
	}
	if !names.Equal(sets.New("renewed", "acquired", "other")) {
		t.Errorf("Leases left: %v", sets.List(names))
	}
	if n := testutil.ToFloat64(l.metrics.culled); n != 3 {
		t.Errorf("%v deleted Leases were counted, want 3", n)
	}
}
