package apiserver_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
)

// TestHooks checks that the health checks of start tasks have the same names as with kube-apiserver. Tasks that
// Trellis does not have must have no health check. (CRD-070)
func TestHooks(t *testing.T) {
	get := func(s *apiserver.Server, path string, status int) string {
		t.Helper()
		resp, err := client(t, s).Get(s.URL() + path)
		return body(t, resp, err, status)
	}
	names := []string{"start-apiextensions-controllers", "crd-informer-synced", "start-system-namespaces-controller",
		"start-cluster-authentication-info-controller", "storage-readiness", "start-legacy-token-tracking-controller",
		"rbac/bootstrap-roles",
		"bootstrap-controller", "apiservice-registration-controller", "apiservice-discovery-controller"}
	names = append(names, "start-service-ip-repair-controllers", "start-kubernetes-service-cidr-controller")
	optional := []string{"scheduling/bootstrap-system-priority-classes",
		"priority-and-fairness-config-consumer", "priority-and-fairness-config-producer",
		"apiservice-status-local-available-controller",
		"start-kube-apiserver-identity-lease-controller",
		"start-kube-apiserver-identity-lease-garbage-collector",
		"apiservice-status-remote-available-controller", "kube-apiserver-autoregistration"}
	all := start(t, apiserver.Config{})
	for _, endpoint := range []string{"/healthz", "/livez", "/readyz"} {
		verbose := get(all, endpoint+"?verbose", http.StatusOK)
		for _, name := range append(names, optional...) {
			if line := "[+]poststarthook/" + name + " ok\n"; !strings.Contains(verbose, line) {
				t.Errorf("%s does not list %s", endpoint, name)
			}
			get(all, endpoint+"/poststarthook/"+name, http.StatusOK)
		}
		for _, name := range []string{"log", "informer-sync", "poststarthook", "poststarthook/", "poststarthook/rbac",
			"poststarthook/max-in-flight-filter",
			"poststarthook/generic-apiserver-start-informers"} {
			get(all, endpoint+"/"+name, http.StatusNotFound)
		}
	}
	if paths := get(all, "/", http.StatusOK); !strings.Contains(paths, `"/livez/poststarthook/rbac/bootstrap-roles"`) {
		t.Errorf("the index lacks the hooks: %s", paths)
	}
	few := start(t, apiserver.Config{Fairness: flowcontrol.Config{Disabled: true},
		RuntimeConfig: map[string]string{"api/all": "false", "v1": "true", "networking.k8s.io/v1": "true"}})
	get(few, "/readyz", http.StatusOK)
	for _, name := range names {
		get(few, "/readyz/poststarthook/"+name, http.StatusOK)
	}
	for _, name := range optional {
		get(few, "/readyz/poststarthook/"+name, http.StatusNotFound)
	}
}

// TestReconcileEveryMinute checks that the server creates missing flow control objects and system namespaces every
// minute.
func TestReconcileEveryMinute(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	c := kubernetes.NewForConfigOrDie(start(t, apiserver.Config{Clock: clock}).Loopback())
	if err := c.FlowcontrolV1().FlowSchemas().Delete(t.Context(), "catch-all", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.CoreV1().Namespaces().Delete(t.Context(), "kube-node-lease", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	poll := func(done func(ctx context.Context) bool) {
		t.Helper()
		if err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 30*time.Second, true,
			func(ctx context.Context) (bool, error) { return done(ctx), nil }); err != nil {
			t.Error(err)
		}
	}
	poll(func(ctx context.Context) bool {
		_, err := c.CoreV1().Namespaces().Get(ctx, "kube-node-lease", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if _, err := c.FlowcontrolV1().FlowSchemas().Get(t.Context(), "catch-all",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("before the interval has passed: %v", err)
	}
	clock.Step(time.Minute)
	poll(func(ctx context.Context) bool {
		_, schema := c.FlowcontrolV1().FlowSchemas().Get(ctx, "catch-all", metav1.GetOptions{})
		_, namespace := c.CoreV1().Namespaces().Get(ctx, "kube-node-lease", metav1.GetOptions{})
		return schema == nil && namespace == nil
	})
}
