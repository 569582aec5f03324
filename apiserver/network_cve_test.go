package apiserver_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/admission/plugins"
)

// TestCVE20208554 checks that a user cannot intercept traffic of other addresses with spec.externalIPs (CVE-2020-8554).
func TestCVE20208554(t *testing.T) {
	open := start(t, apiserver.Config{DataDir: t.TempDir(),
		Admission: plugins.Options{Disable: []string{"DenyServiceExternalIPs"}}})
	for _, c := range []struct {
		server *apiserver.Server
		denied bool
	}{{open, false}, {start(t, apiserver.Config{}), true}} {
		services := kubernetes.NewForConfigOrDie(c.server.ClientConfig()).CoreV1().Services("default")
		intercepting := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "intercepting"},
			Spec: corev1.ServiceSpec{ExternalIPs: []string{"192.0.2.8"}, Ports: []corev1.ServicePort{{Port: 443}}}}
		_, err := services.Create(t.Context(), intercepting, metav1.CreateOptions{})
		if denied := apierrors.IsForbidden(err) && strings.Contains(err.Error(),
			"Use of external IPs is denied by admission control"); denied != c.denied || !denied && err != nil {
			t.Errorf("create: %v, denied: want %t", err, c.denied)
		}
		if _, err := services.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "plain"},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err = services.Patch(t.Context(), "plain", types.MergePatchType,
			[]byte(`{"spec":{"externalIPs":["192.0.2.8"]}}`), metav1.PatchOptions{})
		if apierrors.IsForbidden(err) != c.denied {
			t.Errorf("patch: %v, denied: want %t", err, c.denied)
		}
	}
}

// TestCVE202125737 checks that EndpointSlices and Endpoints with a loopback or link-local address, in any spelling, are
// rejected, so that no proxy connects to such an address (CVE-2021-25737).
func TestCVE202125737(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(start(t, apiserver.Config{}).ClientConfig())
	port := int32(80)
	for address, family := range map[string]discoveryv1.AddressType{
		"127.0.0.1": discoveryv1.AddressTypeIPv4, "127.9.8.7": discoveryv1.AddressTypeIPv4,
		"169.254.169.254": discoveryv1.AddressTypeIPv4, "0.0.0.0": discoveryv1.AddressTypeIPv4,
		"224.0.0.1": discoveryv1.AddressTypeIPv4, "::1": discoveryv1.AddressTypeIPv6,
		"fe80::1": discoveryv1.AddressTypeIPv6, "::": discoveryv1.AddressTypeIPv6,
		"ff02::1":          discoveryv1.AddressTypeIPv6,
		"::ffff:127.0.0.1": discoveryv1.AddressTypeIPv6, "::ffff:169.254.169.254": discoveryv1.AddressTypeIPv6,
		"127.1": discoveryv1.AddressTypeIPv4, "0177.0.0.1": discoveryv1.AddressTypeIPv4,
	} {
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "e"}, AddressType: family,
			Ports:     []discoveryv1.EndpointPort{{Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}}}
		if _, err := client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice,
			metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("an EndpointSlice with %s: %v", address, err)
		}
		endpoints := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: "e"},
			Subsets: []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: address}},
				Ports: []corev1.EndpointPort{{Port: port}}}}}
		if _, err := client.CoreV1().Endpoints("default").Create(t.Context(), endpoints,
			metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("Endpoints with %s: %v", address, err)
		}
	}
}

// TestCVE202125740 checks that the role edit does not permit writes of EndpointSlices and Endpoints. It also checks
// that a proxy connects to an address in these objects only if it belongs to a Pod of the same namespace
// (CVE-2021-25740).
func TestCVE202125740(t *testing.T) {
	d := newDialEnv(t, apiserver.Config{})
	client := kubernetes.NewForConfigOrDie(d.config)
	for _, name := range []string{"system:aggregate-to-edit", "edit", "admin"} {
		role, err := client.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			if slices.ContainsFunc(rule.Resources, func(r string) bool {
				return r == "endpoints" ||
					r == "endpointslices" || r == rbacv1.ResourceAll
			}) && !slices.Equal(rule.Verbs, []string{"get", "list", "watch"}) {
				t.Errorf("%s may %v %v", name, rule.Verbs, rule.Resources)
			}
		}
	}
	d.must("POST", "/api/v1/namespaces", `{"metadata":{"name":"other"}}`)
	d.must("PATCH", pods+"/p/status", `{"status":{"podIP":"192.0.2.7","podIPs":[{"ip":"192.0.2.7"}]}}`)
	for _, endpoint := range []string{
		`{"addresses":["192.0.2.66"]}`,
		`{"addresses":["192.0.2.66"],"targetRef":{"kind":"Pod","namespace":"default","name":"p"}}`,
		`{"addresses":["192.0.2.7"],"targetRef":{"kind":"Pod","namespace":"other","name":"p"}}`,
		`{"addresses":["192.0.2.7"],"targetRef":{"kind":"Pod","namespace":"default","name":"none"}}`,
	} {
		d.serve(fmt.Sprintf(`"clusterIP":"None","ports":[{"port":%d}]`, d.listener.port))
		d.create(slicesOfDefault, fmt.Sprintf(`{"metadata":{"name":%[1]q,"labels":{"kubernetes.io/service-name":%[1]q}},"addressType":"IPv4","ports":[{"name":"","port":%[2]d}],"endpoints":[%[3]s]}`, d.service, d.listener.port, endpoint))
		code, response := d.do("GET", callsNode["Service proxy"](d), "")
		if code != http.StatusServiceUnavailable || !strings.Contains(response, "no endpoints available for service") {
			t.Errorf("%s: %d %s", endpoint, code, response)
		}
	}
}

// TestCVE20247598 checks that the NetworkPolicies of a namespace that is being deleted remain until its last Pod is
// deleted (CVE-2024-7598).
func TestCVE20247598(t *testing.T) {
	client := kubernetes.NewForConfigOrDie(start(t, apiserver.Config{}).ClientConfig())
	ctx := t.Context()
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ends"}},
		metav1.CreateOptions{}))
	policies := client.NetworkingV1().NetworkPolicies("ends")
	must(policies.Create(ctx, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "closed"}},
		metav1.CreateOptions{}))
	if _, err := client.CoreV1().ServiceAccounts("ends").Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "runs", Finalizers: []string{"example.com/runs"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	must(client.CoreV1().Pods("ends").Create(ctx, pod, metav1.CreateOptions{}))
	events, err := policies.Watch(ctx, metav1.ListOptions{})
	must(nil, err)
	defer events.Stop()
	must(nil, client.CoreV1().Namespaces().Delete(ctx, "ends", metav1.DeleteOptions{}))
	eventually(t, "await the wait for the finalizer of the Pod", func(ctx context.Context) bool {
		ns, err := client.CoreV1().Namespaces().Get(ctx, "ends", metav1.GetOptions{})
		must(nil, err)
		return slices.ContainsFunc(ns.Status.Conditions, func(c corev1.NamespaceCondition) bool {
			return c.Type == corev1.NamespaceFinalizersRemaining && c.Status == corev1.ConditionTrue
		})
	})
	policy, err := policies.Get(ctx, "closed", metav1.GetOptions{})
	if err != nil || policy.DeletionTimestamp != nil {
		t.Errorf("the policy was deleted before the Pod: %v", err)
	}
	must(client.CoreV1().Pods("ends").Patch(ctx, "runs", types.JSONPatchType,
		[]byte(`[{"op":"remove","path":"/metadata/finalizers"}]`), metav1.PatchOptions{}))
	for event := range events.ResultChan() {
		if event.Type == "DELETED" {
			return
		}
	}
	t.Error("the policy is not deleted after the Pod")
}
