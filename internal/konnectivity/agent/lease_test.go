package agent

import (
	"slices"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// lease returns the Lease of a server that was renewed the given time ago.
func lease(name, address string, renewed time.Duration) *coordinationv1.Lease {
	seconds, at := int32(30), metav1.NewMicroTime(time.Now().Add(-renewed))
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: "kube-system", Labels: map[string]string{"k8s-app": "konnectivity-server"},
			Annotations: map[string]string{wire.AddressAnnotation: address},
		},
		Spec: coordinationv1.LeaseSpec{RenewTime: &at, LeaseDurationSeconds: &seconds},
	}
}

// TestCountLeases checks that only valid Leases count and that only their addresses are dialled. The reference
// agent does the same (KON-055).
func TestCountLeases(t *testing.T) {
	acquired, never, endless := lease("acquired", "", 0), lease("never", "n:1", 0), lease("endless", "e:1", 0)
	acquired.Spec.AcquireTime, acquired.Spec.RenewTime = acquired.Spec.RenewTime, nil
	never.Spec.RenewTime = nil
	endless.Spec.LeaseDurationSeconds = nil
	all := []any{
		lease("one", "192.0.2.1:8132", 29*time.Second), lease("two", "[::1]:8132, two:8132", 0),
		lease("wrong", "no port", 0),
		acquired, lease("expired", "x:1", 31*time.Second), never, endless, "something else",
	}
	count, addresses := countLeases(all, time.Now())
	if want := []string{"192.0.2.1:8132", "[::1]:8132", "two:8132"}; count != 4 || !slices.Equal(addresses, want) {
		t.Errorf("got %d servers at %q, want 4 at %q", count, addresses, want)
	}
	if count, _ := countLeases(nil, time.Now()); count != 0 {
		t.Errorf("got %d servers without Leases, want 0", count)
	}
}

// TestFollowLeases checks that the informer watches the Leases in the namespace that match the selector, and
// reports changes (KON-055).
func TestFollowLeases(t *testing.T) {
	other, elsewhere := lease("other", "", 0), lease("elsewhere", "", 0)
	other.Labels, elsewhere.Namespace = nil, "default"
	client := fake.NewClientset(lease("one", "", 0), other, elsewhere)
	selector, err := labels.Parse("k8s-app=konnectivity-server")
	if err != nil {
		t.Fatal(err)
	}
	changes := make(chan struct{}, 10)
	informer := leaseInformer(client, &Config{LeaseNamespace: "kube-system", LeaseSelector: selector},
		func() { changes <- struct{}{} })
	done := make(chan struct{})
	go func() {
		defer close(done)
		informer.RunWithContext(t.Context())
	}()
	t.Cleanup(func() { <-done })
	leases := client.CoordinationV1().Leases("kube-system")
	for i, change := range []func() error{
		func() error { return nil },
		func() (err error) {
			_, err = leases.Create(t.Context(), lease("two", "", 0), metav1.CreateOptions{})
			return err
		},
		func() error { return leases.Delete(t.Context(), "one", metav1.DeleteOptions{}) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changes:
		case <-time.After(30 * time.Second):
			t.Fatalf("change %d is not reported", i)
		}
	}
	if all := informer.GetStore().ListKeys(); !slices.Equal(all, []string{"kube-system/two"}) {
		t.Errorf("the informer has %v, want only kube-system/two", all)
	}
}
