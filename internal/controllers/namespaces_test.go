package controllers_test

import (
	"context"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/trellis-k8s/trellis/testserver"
)

func namespace(name string) *unstructured.Unstructured { return object("Namespace", "v1", name) }

// awaitCondition waits until a condition of a namespace is text.
func (w *testClient) awaitCondition(t *testing.T, name, kind, text string) {
	t.Helper()
	w.await(t, namespaces, "", name, kind+" is "+text, func(o *unstructured.Unstructured) bool {
		return condition(o, kind) == text
	})
}

// TestNamespaceConditions checks that the conditions report the remaining objects and finalizers, and that the
// namespace is deleted as soon as nothing remains. (CRD-031, CRD-032)
func TestNamespaceConditions(t *testing.T) {
	w := connect(t, testserver.Start(t))
	widgets := w.crd(t, "example.com", "Widget", "Namespaced")
	hosts := w.crd(t, "example.com", "Host", "Cluster")
	w.create(t, hosts, "", object("Host", "example.com/v1", "h"))
	w.create(t, namespaces, "", namespace("n"))
	for i := range 3 {
		w.create(t, configMaps, "n", owned(configMap(fmt.Sprint("c", i)), nil, hold))
	}
	w.create(t, widgets, "n", owned(object("Widget", "example.com/v1", "w"), nil, hold, "example.com/other"))
	w.create(t, widgets, "n", object("Widget", "example.com/v1", "free"))
	w.create(t, secrets, "n", secret("s"))
	w.create(t, secrets, "default", secret("s"))

	w.delete(t, namespaces, "", "n", "")
	w.awaitCondition(t, "n", "NamespaceContentRemaining", "True/SomeResourcesRemain/Some resources are remaining: "+
		"configmaps. has 3 resource instances, widgets.example.com has 1 resource instances")
	w.awaitCondition(
		t,
		"n",
		"NamespaceFinalizersRemaining",
		"True/SomeFinalizersRemain/Some content in the namespace has finalizers remaining: "+
			"example.com/hold in 4 resource instances, example.com/other in 1 resource instances",
	)
	w.awaitCondition(
		t,
		"n",
		"NamespaceDeletionContentFailure",
		"False/ContentDeleted/All content successfully deleted, may be waiting on finalization",
	)
	w.awaitCondition(
		t,
		"n",
		"NamespaceDeletionDiscoveryFailure",
		"False/ResourcesDiscovered/All resources successfully discovered",
	)
	w.awaitCondition(
		t,
		"n",
		"NamespaceDeletionGroupVersionParsingFailure",
		"False/ParsedGroupVersions/All legacy kube types successfully parsed",
	)
	if _, err := w.at(secrets, "n").Get(t.Context(), "s", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get a Secret without finalizers: got %v, want NotFound", err)
	}
	if _, err := w.at(configMaps, "n").Create(
		t.Context(), configMap("late"), metav1.CreateOptions{},
	); !apierrors.IsForbidden(err) {
		t.Errorf("create in a terminating namespace: got %v, want Forbidden", err)
	}

	w.removeFinalizers(t, configMaps, "n", "c0")
	w.awaitCondition(t, "n", "NamespaceContentRemaining", "True/SomeResourcesRemain/Some resources are remaining: "+
		"configmaps. has 2 resource instances, widgets.example.com has 1 resource instances")
	w.removeFinalizers(t, configMaps, "n", "c1")
	w.removeFinalizers(t, configMaps, "n", "c2")
	w.removeFinalizers(t, widgets, "n", "w")
	w.awaitGone(t, namespaces, "", "n")
	w.get(t, hosts, "", "h")
	w.get(t, crds, "", "widgets.example.com")
	w.get(t, secrets, "default", "s")
}

// TestNamespaceIsFinalizedPromptly checks that a namespace is deleted at once when its last finalizer is removed,
// even after many failed attempts with a long backoff. (CRD-031)
func TestNamespaceIsFinalizedPromptly(t *testing.T) {
	w := connect(t, testserver.Start(t))
	w.create(t, namespaces, "", namespace("n"))
	w.create(t, configMaps, "n", owned(configMap("c"), nil, hold))
	w.delete(t, namespaces, "", "n", "")
	for i := range 200 { // each change causes another failed attempt to delete the content
		w.patch(t, namespaces, "", "n", fmt.Sprintf(`{"metadata":{"annotations":{"try":"%d"}}}`, i))
	}
	w.awaitCondition(t, "n", "NamespaceContentRemaining",
		"True/SomeResourcesRemain/Some resources are remaining: configmaps. has 1 resource instances")
	w.removeFinalizers(t, configMaps, "n", "c")
	w.awaitGone(t, namespaces, "", "n")
}

// TestNamespaceRecreated checks that a recreated namespace is empty and can be deleted. (CRD-031)
func TestNamespaceRecreated(t *testing.T) {
	w := connect(t, testserver.Start(t))
	for range 3 {
		w.create(t, namespaces, "", namespace("n"))
		w.create(t, configMaps, "n", configMap("c"))
		w.create(t, secrets, "n", owned(secret("s"), owners(reference(w.get(t, configMaps, "n", "c"), true))))
		w.delete(t, namespaces, "", "n", metav1.DeletePropagationForeground)
		w.awaitGone(t, namespaces, "", "n")
	}
}

// TestNamespaceAndCRDDeletedTogether checks that a CRD deleted at the same time neither blocks the namespace nor leaves
// objects behind. (CRD-027, CRD-031)
func TestNamespaceAndCRDDeletedTogether(t *testing.T) {
	for _, held := range []bool{false, true} {
		t.Run(fmt.Sprint("held=", held), func(t *testing.T) {
			w := connect(t, testserver.Start(t))
			widgets := w.crd(t, "example.com", "Widget", "Namespaced")
			w.create(t, namespaces, "", namespace("n"))
			for i := range 20 {
				o := object("Widget", "example.com/v1", fmt.Sprint("w", i))
				if held && i == 7 {
					o.SetFinalizers([]string{hold})
				}
				w.create(t, widgets, "n", o)
				w.create(t, configMaps, "n", configMap(fmt.Sprint("c", i)))
			}
			w.delete(t, namespaces, "", "n", "")
			w.delete(t, crds, "", "widgets.example.com", "")
			if held {
				w.awaitCondition(
					t,
					"n",
					"NamespaceContentRemaining",
					"True/SomeResourcesRemain/Some resources are remaining: "+
						"widgets.example.com has 1 resource instances",
				)
				w.removeFinalizers(t, widgets, "n", "w7")
			}
			w.awaitGone(t, crds, "", "widgets.example.com")
			w.awaitGone(t, namespaces, "", "n")
		})
	}
}

// TestNamespaceDeletionAcrossRestarts checks that the deletion of a namespace continues after a restart. (CRD-031)
func TestNamespaceDeletionAcrossRestarts(t *testing.T) {
	s := testserver.Start(t, testserver.OnDisk())
	w := connect(t, s)
	widgets := w.crd(t, "example.com", "Widget", "Namespaced")
	w.create(t, namespaces, "", namespace("n"))
	for i := range 30 {
		w.create(t, widgets, "n", owned(object("Widget", "example.com/v1", fmt.Sprint("w", i)), nil, hold))
	}
	w.delete(t, namespaces, "", "n", "")
	s.Restart()
	w = connect(t, s)
	for i := range 30 {
		if i == 15 {
			s.Restart()
			w = connect(t, s)
		}
		w.removeFinalizers(t, widgets, "n", fmt.Sprint("w", i))
	}
	// If the test removes a finalizer before the controller deletes the object, the controller deletes it later.
	w.awaitGone(t, namespaces, "", "n")
	w.create(t, namespaces, "", namespace("n"))
	list, err := w.at(widgets, "n").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("the recreated namespace has %d Widgets, error %v, want none", len(list.Items), err)
	}
}

// TestNamespaceDeletesEveryKind checks that the objects of all kinds are deleted with the namespace. Pods are deleted
// first (KEP-5080). (CRD-031)
func TestNamespaceDeletesEveryKind(t *testing.T) {
	w := connect(t, testserver.Start(t))
	w.create(t, namespaces, "", namespace("n"))
	var kinds []string
	for i := range 12 {
		gvr := w.crd(t, fmt.Sprintf("g%d.example.com", i), "Thing", "Namespaced")
		w.create(t, gvr, "n", object("Thing", gvr.Group+"/v1", "t"))
		kinds = append(kinds, gvr.Group)
	}
	w.delete(t, namespaces, "", "n", "")
	w.awaitGone(t, namespaces, "", "n")
	for _, group := range kinds {
		gvr := crds
		gvr.Group, gvr.Version, gvr.Resource = group, "v1", "things"
		eventually(t, group+" is empty", func(ctx context.Context) bool {
			list, err := w.at(gvr, "").List(ctx, metav1.ListOptions{})
			return err == nil && len(list.Items) == 0
		})
	}
}
