package controllers_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

// ranges configures the server's ranges of ClusterIPs.
func ranges(texts ...string) testserver.Option {
	return testserver.With(func(c *apiserver.Config) {
		c.ServiceClusterIPRanges = nil
		for _, text := range texts {
			c.ServiceClusterIPRanges = append(c.ServiceClusterIPRanges, netip.MustParsePrefix(text))
		}
	})
}

// TestDefaultServiceCIDR checks that the default ServiceCIDR exists and is ready as soon as the server is ready. The
// Service kubernetes has the first address of the range. (EXT-020)
func TestDefaultServiceCIDR(t *testing.T) {
	for _, texts := range [][]string{{"10.0.0.0/24"}, {"10.96.0.0/12", "fd00::/108"}, {"fd00::/108", "10.96.0.0/12"}} {
		client := kubernetes.NewForConfigOrDie(testserver.Start(t, ranges(texts...)).Config)
		cidr, err := client.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(cidr.Spec.CIDRs, texts) ||
			!apimeta.IsStatusConditionTrue(cidr.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
			t.Errorf("%q: got ServiceCIDR %v, want it ready with these ranges", texts, cidr)
		}
		service, err := client.CoreV1().Services("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		first := netip.MustParsePrefix(texts[0]).Addr().Next().String()
		if !slices.Equal(service.Spec.ClusterIPs, []string{first}) ||
			*service.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack {
			t.Errorf("%q: got Service %v, want ClusterIP %s", texts, service.Spec, first)
		}
		address, err := client.NetworkingV1().IPAddresses().Get(t.Context(), first, metav1.GetOptions{})
		if err != nil ||
			*address.Spec.ParentRef != (networkingv1.ParentReference{
				Resource: "services", Namespace: "default", Name: "kubernetes",
			}) {
			t.Errorf("%q: got IPAddress %v, error %v, want the parent default/kubernetes", texts, address, err)
		}
	}
}

// TestDefaultServiceCIDRAfterFlagChange checks that the default ServiceCIDR gets a second range when the flag does.
// For all other changes of the flag, an Event reports the difference. (EXT-020)
func TestDefaultServiceCIDRAfterFlagChange(t *testing.T) {
	dir := t.TempDir()
	start := func(texts ...string) (*testserver.Server, *kubernetes.Clientset) {
		s := testserver.Start(t, ranges(texts...), testserver.With(func(c *apiserver.Config) { c.DataDir = dir }))
		return s, kubernetes.NewForConfigOrDie(s.Config)
	}
	s, _ := start("10.0.0.0/24")
	s.Stop()
	for _, texts := range [][]string{{"10.0.0.0/24", "fd00::/112"}, {"10.1.0.0/24", "fd01::/112"}} {
		s, client := start(texts...)
		cidr, err := client.NetworkingV1().ServiceCIDRs().Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil || !slices.Equal(cidr.Spec.CIDRs, []string{"10.0.0.0/24", "fd00::/112"}) {
			t.Fatal(cidr, err)
		}
		if texts[0] == "10.1.0.0/24" {
			const text = "The default ServiceCIDR [10.0.0.0/24 fd00::/112] does not match " +
				"the controller flag configurations [10.1.0.0/24 fd01::/112]"
			eventually(t, "an Event", func(ctx context.Context) bool {
				all, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{})
				return err == nil && slices.ContainsFunc(all.Items, func(e corev1.Event) bool {
					return e.Reason == "KubernetesDefaultServiceCIDRInconsistent" && e.Message == text
				})
			})
		}
		s.Stop()
	}
}

// TestServiceCIDRDeletion checks that a new ServiceCIDR becomes ready, and that a deleted one remains while a Service
// uses one of its addresses. (EXT-020)
func TestServiceCIDRDeletion(t *testing.T) {
	if testing.Short() {
		t.Skip("upstream's controller waits ten seconds before it removes the finalizer")
	}
	t.Parallel()
	client := kubernetes.NewForConfigOrDie(testserver.Start(t).Config)
	cidrs, services := client.NetworkingV1().ServiceCIDRs(), client.CoreV1().Services("default")
	ready := func(ctx context.Context, status metav1.ConditionStatus, reason string) bool {
		c, err := cidrs.Get(ctx, "more", metav1.GetOptions{})
		if err != nil {
			return false
		}
		is := apimeta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
		return is != nil && is.Status == status && is.Reason == reason &&
			slices.Equal(c.Finalizers, []string{"networking.k8s.io/service-cidr-finalizer"})
	}
	if _, err := cidrs.Create(t.Context(), &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.9.0.0/24"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ServiceCIDR is ready", func(ctx context.Context) bool {
		return ready(ctx, metav1.ConditionTrue, "")
	})
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.9.0.7", Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if _, err := services.Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cidrs.Delete(t.Context(), "more", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ServiceCIDR waits for its Service", func(ctx context.Context) bool {
		return ready(ctx, metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating)
	})
	if err := services.Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(
		t.Context(),
		50*time.Millisecond,
		10*time.Second+waitTimeout,
		true,
		func(ctx context.Context) (bool, error) {
			_, err := cidrs.Get(ctx, "more", metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		},
	)
	if err != nil {
		t.Error("the ServiceCIDR is not deleted after its last Service")
	}
}
