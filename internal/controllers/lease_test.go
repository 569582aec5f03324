package controllers_test

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/internal/controllers"
	"github.com/trellis-k8s/trellis/internal/controllers/bootstrap"
	"github.com/trellis-k8s/trellis/internal/controllers/upstream"
	"github.com/trellis-k8s/trellis/testserver"
)

// TestControllersLease checks that the server publishes the names of its controllers at each start. It writes the
// Lease only if the names have changed.
func TestControllersLease(t *testing.T) {
	s := testserver.Start(t)
	client := kubernetes.NewForConfigOrDie(s.Config)
	leases := client.CoordinationV1().Leases(metav1.NamespaceSystem)
	published := func() (names []string, version string) {
		t.Helper()
		l, err := leases.Get(t.Context(), "trellis-serve", metav1.GetOptions{})
		if err != nil || *l.Spec.HolderIdentity != "trellis-serve" {
			t.Fatal(l, err)
		}
		return strings.Split(l.Annotations["trellis.dev/controllers"], ","), l.ResourceVersion
	}
	own := append([]string{"service-cidr-controller"}, controllers.TrellisControllers...)
	for _, c := range []struct{ chosen, want []string }{
		// the configuration of testserver
		{[]string{upstream.ClusterRoleAggregation}, append(slices.Clone(own), upstream.ClusterRoleAggregation)},
		{[]string{"*"}, append(slices.Clone(own), upstream.Names()...)},
		{[]string{"-*"}, own[:1]},
	} {
		for range 2 {
			if err := bootstrap.Reconcile(t.Context(), client, controllers.Running(c.chosen)); err != nil {
				t.Fatal(err)
			}
			want := slices.Sorted(slices.Values(c.want))
			if got, _ := published(); !slices.Equal(got, want) {
				t.Errorf("%v: got %v, want %v", c.chosen, got, want)
			}
		}
	}
	_, before := published()
	if err := bootstrap.Reconcile(t.Context(), client, controllers.Running([]string{"-*"})); err != nil {
		t.Fatal(err)
	}
	if _, after := published(); after != before {
		t.Error("the Lease was written without a change")
	}
}
