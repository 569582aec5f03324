package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/controllers/manifests"
	"github.com/trellis-k8s/trellis/testserver"
)

// workersManifest contains the custom kind Worker with the subresource scale, and one object of this kind. It also
// contains an APIService for external metrics, whose backend listens on localhost.
const workersManifest = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: workers.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: workers, kind: Worker}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    subresources:
      scale:
        specReplicasPath: .spec.replicas
        statusReplicasPath: .status.replicas
        labelSelectorPath: .status.selector
---
apiVersion: v1
kind: Service
metadata: {name: metrics, namespace: default}
spec: {type: ExternalName, externalName: localhost}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {namespace: default, name: metrics, port: %s}
---
apiVersion: example.com/v1
kind: Worker
metadata: {name: queue, namespace: default}
spec: {replicas: 1}
status: {replicas: 1, selector: app=queue}
`

// serveMetrics serves the API for external metrics. Its only metric is queue_length, which has the value 35.
func serveMetrics(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path != "/apis/external.metrics.k8s.io/v1beta1/namespaces/default/queue_length" {
		fmt.Fprint(w, `{"kind": "APIResourceList", "apiVersion": "v1",
			"groupVersion": "external.metrics.k8s.io/v1beta1", "resources": [
			{"name": "queue_length", "namespaced": true, "kind": "ExternalMetricValueList", "verbs": ["get"]}]}`)
		return
	}
	fmt.Fprint(w, `{"kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": {},
		"items": [
			{"metricName": "queue_length", "metricLabels": {}, "timestamp": "2026-01-01T00:00:00Z", "value": "35"}]}`)
}

// TestAutoscalingOfCustomKinds checks that a HorizontalPodAutoscaler scales an object of a custom kind by a metric
// from an aggregated API. SUB-025
func TestAutoscalingOfCustomKinds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 0, testserver.LocalServices("default/metrics"))
	backend := httptest.NewTLSServer(http.HandlerFunc(serveMetrics))
	t.Cleanup(backend.Close)
	at, err := url.Parse(backend.URL)
	f.must(err)
	f.must(manifests.Apply(t.Context(), f.server.Config,
		[]string{f.writeFile("workers.yaml", fmt.Sprintf(workersManifest, at.Port()))}, io.Discard))
	f.startUp("--horizontal-pod-autoscaler-sync-period=500ms")
	_, err = f.AutoscalingV2().HorizontalPodAutoscalers("default").Create(t.Context(),
		&autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Name: "queue"},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "example.com/v1", Kind: "Worker",
					Name: "queue"},
				MinReplicas: ptr.To[int32](1), MaxReplicas: 10,
				Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ExternalMetricSourceType,
					External: &autoscalingv2.ExternalMetricSource{
						Metric: autoscalingv2.MetricIdentifier{Name: "queue_length"},
						Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType,
							AverageValue: ptr.To(resource.MustParse("10"))},
					}}},
			},
		}, metav1.CreateOptions{})
	f.must(err)
	kind := dynamic.NewForConfigOrDie(f.server.Config).Resource(schema.GroupVersionResource{Group: "example.com",
		Version: "v1", Resource: "workers"}).Namespace("default")
	waitFor(f, kind, "queue", func(o *unstructured.Unstructured) bool {
		n, _, _ := unstructured.NestedInt64(o.Object, "spec", "replicas")
		return n == 4
	})
}

// TestBudgetOfCustomKinds checks that a PodDisruptionBudget reads the expected number of Pods from the subresource
// scale of their custom owner. It also checks that evictions beyond the budget fail. SUB-028
func TestBudgetOfCustomKinds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, 1)
	f.must(manifests.Apply(t.Context(), f.server.Config,
		[]string{f.writeFile("workers.yaml", fmt.Sprintf(workersManifest, "443"))}, io.Discard))
	kind := dynamic.NewForConfigOrDie(f.server.Config).Resource(schema.GroupVersionResource{Group: "example.com",
		Version: "v1", Resource: "workers"}).Namespace("default")
	owner, err := kind.Patch(t.Context(), "queue", types.MergePatchType, []byte(`{"spec": {"replicas": 3}}`),
		metav1.PatchOptions{})
	f.must(err)
	f.startUp()
	of := func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner,
			schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Worker"})}
	}
	for _, name := range []string{"a", "b"} {
		f.createPod(name, withLabel("app", "queue"), of)
	}
	budgets := f.PolicyV1().PodDisruptionBudgets("default")
	_, err = budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: objectMeta("queue"),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(1)),
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "queue"}},
		}}, metav1.CreateOptions{})
	f.must(err)
	evict := func(name string) error {
		return f.PolicyV1().Evictions("default").Evict(t.Context(),
			&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}})
	}
	waitFor(f, budgets, "queue", func(b *policyv1.PodDisruptionBudget) bool {
		return b.Status.ExpectedPods == 3 && b.Status.CurrentHealthy == 2 && b.Status.DisruptionsAllowed == 0
	})
	if err := evict("a"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("evict while one of three Pods is missing: got %v, want 429", err)
	}
	f.createPod("c", withLabel("app", "queue"), of)
	waitFor(f, budgets, "queue", func(b *policyv1.PodDisruptionBudget) bool { return b.Status.DisruptionsAllowed == 1 })
	f.must(evict("a"))
	if err := evict("b"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("evict beyond the budget: got %v, want 429", err)
	}
}
