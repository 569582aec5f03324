package compat_test

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/scale"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/testserver"
)

const scaledCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: farms.scale.example.com}
spec:
  group: scale.example.com
  scope: Namespaced
  names: {plural: farms, kind: Farm}
  versions:
  - &version
    name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
    subresources: {status: {}, scale: {specReplicasPath: .spec.size.wanted, statusReplicasPath: .status.size, labelSelectorPath: .status.pods}}
  - {<<: *version, name: v1alpha1, storage: false, subresources: {}}
`

// TestScaleClient checks the requests of a HorizontalPodAutoscaler and of the disruption controller for a custom
// kind. These clients find /scale by discovery and read the replicas and the selector. The autoscaler also writes
// the replicas (SUB-014 SUB-021 SUB-024 SUB-025 SUB-028 SUB-033).
func TestScaleClient(t *testing.T) {
	ctx := t.Context()
	config := testserver.Start(t).Config
	objects := dynamic.NewForConfigOrDie(config)
	put := func(gvr schema.GroupVersionResource, text string) *unstructured.Unstructured {
		t.Helper()
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			t.Fatal(err)
		}
		resource := dynamic.ResourceInterface(objects.Resource(gvr))
		if gvr.Group == "scale.example.com" {
			resource = objects.Resource(gvr).Namespace("default")
		}
		out, err := resource.Create(ctx, u, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	put(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}, scaledCRD)
	farms := schema.GroupVersionResource{Group: "scale.example.com", Version: "v1", Resource: "farms"}
	farm := put(farms, `{apiVersion: scale.example.com/v1, kind: Farm, metadata: {name: f}, spec: {size: {wanted: 2}}}`)
	status := `{"status":{"size":1,"pods":"app=farm,tier in (a,b)"}}`
	if _, err := objects.Resource(farms).Namespace("default").Patch(ctx, "f", types.MergePatchType, []byte(status),
		metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}

	disc := discovery.NewDiscoveryClientForConfigOrDie(config)
	cached := memory.NewMemCacheClient(disc)
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	client, err := scale.NewForConfig(config, mapper, dynamic.LegacyAPIPathResolverFunc,
		scale.NewDiscoveryScaleKindResolver(disc))
	if err != nil {
		t.Fatal(err)
	}
	// scaleTargetRef: {apiVersion: scale.example.com/v1, kind: Farm, name: f}
	mappings, err := mapper.RESTMappings(schema.GroupKind{Group: "scale.example.com", Kind: "Farm"})
	if err != nil || len(mappings) == 0 || mappings[0].Resource != farms {
		t.Fatalf("got mappings %v (%v), want %v", mappings, err, farms)
	}
	gr := mappings[0].Resource.GroupResource()
	s, err := client.Scales("default").Get(ctx, gr, "f", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s.Spec.Replicas != 2 || s.Status.Replicas != 1 || s.UID != farm.GetUID() {
		t.Errorf("got scale %+v, want 2 replicas in the spec, 1 in the status and the UID of the farm", s)
	}
	selector, err := labels.Parse(s.Status.Selector)
	if err != nil || !selector.Matches(labels.Set{"app": "farm", "tier": "b"}) ||
		selector.Matches(labels.Set{"app": "farm", "tier": "c"}) {
		t.Errorf("got selector %q (%v), want the one in .status.pods", s.Status.Selector, err)
	}
	rescale(ctx, t, client, gr)
	got, err := objects.Resource(farms).Namespace("default").Get(ctx, "f", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n, _, _ := unstructured.NestedInt64(got.Object, "spec", "size", "wanted"); n != 5 || got.GetGeneration() != 3 {
		t.Errorf("got %d replicas at generation %d, want 5 at 3", n, got.GetGeneration())
	}
	// A version or a kind without a scale has no /scale in discovery.
	list, err := disc.ServerResourcesForGroupVersion("scale.example.com/v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range list.APIResources {
		if strings.HasSuffix(r.Name, "/scale") {
			t.Errorf("got %s in discovery of v1alpha1, which has no scale", r.Name)
		}
	}
	if _, err := client.Scales("default").Get(ctx, schema.GroupResource{Resource: "configmaps"}, "f",
		metav1.GetOptions{}); err == nil {
		t.Error("got a scale of a ConfigMap, want an error")
	}
}

// rescale sends an autoscaler's writes: an update, a stale update, which conflicts, and a patch.
func rescale(ctx context.Context, t *testing.T, client scale.ScalesGetter, gr schema.GroupResource) {
	t.Helper()
	s, err := client.Scales("default").Get(ctx, gr, "f", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stale := s.DeepCopy()
	s.Spec.Replicas = 4
	if s, err = client.Scales("default").Update(ctx, gr, s, metav1.UpdateOptions{}); err != nil ||
		s.Spec.Replicas != 4 {
		t.Fatalf("update: got %+v (%v), want 4 replicas", s, err)
	}
	stale.Spec.Replicas = 9
	if _, err := client.Scales("default").Update(ctx, gr, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("stale update: got error %v, want Conflict", err)
	}
	gvr := gr.WithVersion("v1")
	if s, err = client.Scales("default").Patch(ctx, gvr, "f", types.MergePatchType, []byte(`{"spec":{"replicas":5}}`),
		metav1.PatchOptions{}); err != nil || s.Spec.Replicas != 5 {
		t.Fatalf("patch: got %+v (%v), want 5 replicas", s, err)
	}
}
