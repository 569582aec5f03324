package compat_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/dynamic"

	"github.com/trellis-k8s/trellis/testserver"
)

// release is one object in two revisions of a Helm release.
type release struct {
	resource      schema.GroupVersionResource
	first, second string // manifests of two revisions
	drift         string // merge patch by another user between the revisions
	want          string // data after the upgrade
	patch         func(first, second, live []byte) (types.PatchType, []byte, error)
}

// TestHelmThreeWayPatches checks the patches of Helm 3 upgrades. Helm computes them from the old manifest, the new
// manifest and the live object. It uses a strategic merge patch for kinds with a Go type, and a merge patch for others
// (CRD-055).
func TestHelmThreeWayPatches(t *testing.T) {
	server := testserver.Start(t)
	client, err := dynamic.NewForConfig(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	crd, err := runtime.DefaultUnstructuredConverter.ToUnstructured(boxCRD())
	if err != nil {
		t.Fatal(err)
	}
	crd["apiVersion"], crd["kind"] = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	if _, err := client.Resource(crds).Create(ctx, &unstructured.Unstructured{Object: crd},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]release{
		"ConfigMap": {
			resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
			first:    `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"r","labels":{"v":"1"}},"data":{"same":"1","changed":"1","dropped":"1"}}`,
			drift:    `{"data":{"changed":"by hand","added":"by hand"}}`,
			second:   `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"r","labels":{"v":"2"}},"data":{"same":"1","changed":"2"}}`,
			want:     `{"added":"by hand","changed":"2","same":"1"}`,
			patch:    strategicPatch,
		},
		"Box": {
			resource: schema.GroupVersionResource{Group: boxKind.Group, Version: boxKind.Version, Resource: "boxes"},
			first:    `{"apiVersion":"clients.example.com/v1","kind":"Box","metadata":{"name":"r"},"data":{"same":"1","changed":"1","dropped":"1"}}`,
			drift:    `{"data":{"changed":"by hand","added":"by hand"}}`,
			second:   `{"apiVersion":"clients.example.com/v1","kind":"Box","metadata":{"name":"r"},"data":{"same":"1","changed":"2"}}`,
			want:     `{"added":"by hand","changed":"2","same":"1"}`,
			patch:    mergePatch,
		},
	} {
		t.Run(name, func(t *testing.T) { upgrade(ctx, t, client.Resource(r.resource).Namespace("default"), r) })
	}
}

// upgrade creates the first revision, applies the drift and upgrades to the second revision.
func upgrade(ctx context.Context, t *testing.T, client dynamic.ResourceInterface, r release) {
	t.Helper()
	var first unstructured.Unstructured
	if err := first.UnmarshalJSON([]byte(r.first)); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Create(ctx, &first, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	live, err := client.Patch(ctx, "r", types.MergePatchType, []byte(r.drift), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	current, err := live.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	kind, patch, err := r.patch([]byte(r.first), []byte(r.second), current)
	if err != nil {
		t.Fatal(err)
	}
	upgraded, err := client.Patch(ctx, "r", kind, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatalf("send patch %s: %v", patch, err)
	}
	if got, _ := json.Marshal(upgraded.Object["data"]); string(got) != r.want {
		t.Errorf("data after the upgrade: got %s, want %s", got, r.want)
	}
}

func strategicPatch(first, second, live []byte) (types.PatchType, []byte, error) {
	meta, err := strategicpatch.NewPatchMetaFromStruct(corev1.ConfigMap{})
	if err != nil {
		return "", nil, err
	}
	patch, err := strategicpatch.CreateThreeWayMergePatch(first, second, live, meta, true)
	return types.StrategicMergePatchType, patch, err
}

func mergePatch(first, second, live []byte) (types.PatchType, []byte, error) {
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(first, second, live)
	return types.MergePatchType, patch, err
}
