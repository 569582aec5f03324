package namespace

import (
	"reflect"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	discoveryfake "k8s.io/client-go/discovery/fake"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
)

// TestDeletedObjectRequeuesItsNamespace checks that the deletion of an object queues its namespace if the namespace
// is being deleted. A long backoff of earlier attempts must not delay it. (CRD-031)
func TestDeletedObjectRequeuesItsNamespace(t *testing.T) {
	n := New(Config{})
	defer time.AfterFunc(10*time.Second, n.queue.ShutDown).Stop()
	n.terminating.Store("ends", nil)
	k := informer.Kind{
		GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		Kind:                 "ConfigMap", Namespaced: true,
	}
	for _, name := range []string{"lives", "ends"} {
		o := &metav1.PartialObjectMetadata{}
		o.Name, o.Namespace = "c", name
		n.Observe(informer.Change{Kind: k, Object: o})
		n.Observe(informer.Change{Kind: k, Object: o, Deleted: true})
	}
	if got, shutdown := n.queue.Get(); shutdown || got != "ends" {
		t.Errorf("got queued namespace %q, want ends", got)
	}
	if n.queue.Len() > 0 {
		t.Error("more than one namespace is queued")
	}
}

// TestFinalizeSetsResourceVersion checks that a namespace is finalized only in the state in which it was found empty.
// (CRD-031)
func TestFinalizeSetsResourceVersion(t *testing.T) {
	old := &unstructured.Unstructured{Object: map[string]any{
		"kind": "Namespace", "apiVersion": "v1",
		"metadata": map[string]any{
			"name": "old", "uid": "u", "resourceVersion": "7", "deletionTimestamp": "2026-01-01T00:00:00Z",
		},
		"spec": map[string]any{"finalizers": []any{"kubernetes"}},
	}}
	d := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), old.DeepCopy())
	n := New(Config{Discovery: &discoveryfake.FakeDiscovery{Fake: &clienttesting.Fake{}}, Dynamic: d})
	if err := n.reconcile(t.Context(), "old"); err != nil {
		t.Error(err)
	}
	var writes []string
	for _, action := range d.Actions() {
		update, ok := action.(clienttesting.UpdateAction)
		if !ok {
			continue
		}
		writes = append(writes, action.GetSubresource())
		o := update.GetObject().(*unstructured.Unstructured)
		if got := o.Object["metadata"]; !reflect.DeepEqual(got, old.Object["metadata"]) {
			t.Errorf("%s: got metadata %v, want %v", action.GetSubresource(), got, old.Object["metadata"])
		}
	}
	if want := []string{"status", "finalize"}; !slices.Equal(writes, want) {
		t.Errorf("got writes %v, want %v", writes, want)
	}
}
