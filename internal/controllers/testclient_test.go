package controllers_test

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/trellis-k8s/trellis/testserver"
)

var (
	crds = schema.GroupVersionResource{
		Group:    "apiextensions.k8s.io",
		Version:  "v1",
		Resource: "customresourcedefinitions",
	}
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	secrets    = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	accounts   = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
)

// testClient is a client with helpers that fail the test on errors.
type testClient struct{ dynamic dynamic.Interface }

func connect(t testing.TB, s *testserver.Server) *testClient {
	t.Helper()
	c, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	return &testClient{c}
}

func (w *testClient) at(gvr schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return w.dynamic.Resource(gvr)
	}
	return w.dynamic.Resource(gvr).Namespace(namespace)
}

// version returns a version of a CRD whose schema accepts any field.
func version(name string, served, storage bool) map[string]any {
	return map[string]any{"name": name, "served": served, "storage": storage, "schema": map[string]any{
		"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}
}

func definition(group, kind, scope string, versions ...any) *unstructured.Unstructured {
	plural := strings.ToLower(kind) + "s"
	if len(versions) == 0 {
		versions = []any{version("v1", true, true)}
	}
	crd := object("CustomResourceDefinition", "apiextensions.k8s.io/v1", plural+"."+group)
	crd.Object["spec"] = map[string]any{
		"group": group, "scope": scope, "versions": versions,
		"names": map[string]any{
			"plural":   plural,
			"singular": strings.ToLower(kind),
			"kind":     kind,
			"listKind": kind + "List",
		},
	}
	return crd
}

// crd creates a CRD with the single version v1 and returns its resource.
func (w *testClient) crd(t testing.TB, group, kind, scope string) schema.GroupVersionResource {
	t.Helper()
	w.create(t, crds, "", definition(group, kind, scope))
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: strings.ToLower(kind) + "s"}
}

func object(kind, apiVersion, name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}}}
}

// owned sets the owners and finalizers of an object and returns it.
func owned(
	o *unstructured.Unstructured, owners []metav1.OwnerReference, finalizers ...string,
) *unstructured.Unstructured {
	o.SetOwnerReferences(owners)
	o.SetFinalizers(finalizers)
	return o
}

func reference(owner *unstructured.Unstructured, blocks bool) metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: owner.GetAPIVersion(), Kind: owner.GetKind(), Name: owner.GetName(), UID: owner.GetUID(),
		BlockOwnerDeletion: &blocks,
	}
}

func owners(refs ...metav1.OwnerReference) []metav1.OwnerReference { return refs }

func (w *testClient) create(
	t testing.TB, gvr schema.GroupVersionResource, namespace string, o *unstructured.Unstructured,
) *unstructured.Unstructured {
	t.Helper()
	created, err := w.at(gvr, namespace).Create(t.Context(), o, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create %s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return created
}

func (w *testClient) get(
	t testing.TB, gvr schema.GroupVersionResource, namespace, name string,
) *unstructured.Unstructured {
	t.Helper()
	o, err := w.at(gvr, namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get %s %s: %v", gvr.Resource, name, err)
	}
	return o
}

// delete deletes an object. The policy "" means the server's default.
func (w *testClient) delete(
	t testing.TB, gvr schema.GroupVersionResource, namespace, name string, policy metav1.DeletionPropagation,
) {
	t.Helper()
	options := metav1.DeleteOptions{}
	if policy != "" {
		options.PropagationPolicy = &policy
	}
	if err := w.at(gvr, namespace).Delete(t.Context(), name, options); err != nil {
		t.Fatalf("delete %s %s: %v", gvr.Resource, name, err)
	}
}

// removeFinalizers removes all finalizers of an object.
func (w *testClient) removeFinalizers(t testing.TB, gvr schema.GroupVersionResource, namespace, name string) {
	t.Helper()
	w.patch(t, gvr, namespace, name, `{"metadata":{"finalizers":null}}`)
}

func (w *testClient) patch(t testing.TB, gvr schema.GroupVersionResource, namespace, name, patch string) {
	t.Helper()
	if _, err := w.at(gvr, namespace).Patch(
		t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{},
	); err != nil {
		t.Fatalf("patch %s %s: %v", gvr.Resource, name, err)
	}
}

// waitTimeout is the maximum time to wait for the controllers. It is far shorter than the maximum delay between two
// attempts of a controller. A test thus fails if a controller succeeds only in a late attempt. With the race detector
// the time is longer, because the server is slower.
const waitTimeout = 5 * time.Second * timeoutFactor

// eventually waits until holds returns true. If that does not happen within waitTimeout, it fails the test. The
// parameter what describes the expectation.
func eventually(t testing.TB, what string, holds func(context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(
		t.Context(),
		10*time.Millisecond,
		waitTimeout,
		true,
		func(ctx context.Context) (bool, error) {
			return holds(ctx), nil
		},
	)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func (w *testClient) awaitGone(t testing.TB, gvr schema.GroupVersionResource, namespace, name string) {
	t.Helper()
	eventually(t, gvr.Resource+" "+name+" is deleted", func(ctx context.Context) bool {
		_, err := w.at(gvr, namespace).Get(ctx, name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// await waits until holds returns true for an object.
func (w *testClient) await(
	t testing.TB,
	gvr schema.GroupVersionResource,
	namespace, name, what string,
	holds func(*unstructured.Unstructured) bool,
) {
	t.Helper()
	var last *unstructured.Unstructured
	defer func() {
		if t.Failed() && last != nil {
			t.Logf("%s %s at the end: %v", gvr.Resource, name, last.Object)
		}
	}()
	eventually(t, gvr.Resource+" "+name+" "+what, func(ctx context.Context) bool {
		o, err := w.at(gvr, namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		last = o
		return holds(o)
	})
}

// condition returns "Status/Reason/Message" of a condition, or "" if the object does not have it.
func condition(o *unstructured.Unstructured, kind string) string {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range list {
		if m, _ := c.(map[string]any); m["type"] == kind {
			return m["status"].(string) + "/" + m["reason"].(string) + "/" + m["message"].(string)
		}
	}
	return ""
}
