package controllers_test

import (
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/testserver"
)

var widgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// TestCRDRecreated checks that the objects in all namespaces are deleted with their CRD, and do not exist after the
// CRD is created again. (CRD-027, CRD-030)
func TestCRDRecreated(t *testing.T) {
	w := connect(t, testserver.Start(t))
	w.create(t, namespaces, "", namespace("n"))
	for range 3 {
		w.crd(t, "example.com", "Widget", "Namespaced")
		for i := range 600 { // more than a page
			w.create(t, widgets, []string{"default", "n"}[i%2], object("Widget", "example.com/v1", fmt.Sprint("w", i)))
		}
		w.delete(t, crds, "", "widgets.example.com", "")
		w.awaitGone(t, crds, "", "widgets.example.com")
		if _, err := w.at(widgets, "n").Get(t.Context(), "w1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("get an object after the deletion of its CRD: got %v, want NotFound", err)
		}
	}
	w.crd(t, "example.com", "Widget", "Namespaced")
	list, err := w.at(widgets, "").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("the recreated kind has %d objects, error %v, want none", len(list.Items), err)
	}
}

// TestCRDWaitsForFinalizers checks that the deletion of a CRD waits for objects with finalizers, and that its condition
// Terminating reports the progress. (CRD-043, CRD-045)
func TestCRDWaitsForFinalizers(t *testing.T) {
	for _, scope := range []string{"Namespaced", "Cluster"} {
		t.Run(scope, func(t *testing.T) {
			w := connect(t, testserver.Start(t))
			w.crd(t, "example.com", "Widget", scope)
			in := map[string]string{"Namespaced": "default"}[scope]
			for i := range 8 {
				w.create(t, widgets, in, owned(object("Widget", "example.com/v1", fmt.Sprint("w", i)), nil, hold))
			}
			w.create(t, widgets, in, object("Widget", "example.com/v1", "free"))
			seen := watchCondition(t, w, "widgets.example.com", "Terminating")
			w.delete(t, crds, "", "widgets.example.com", "")
			w.awaitGone(t, widgets, in, "free")
			for i := range 8 {
				w.await(
					t,
					widgets,
					in,
					fmt.Sprint("w", i),
					"is being deleted",
					func(o *unstructured.Unstructured) bool {
						return o.GetDeletionTimestamp() != nil
					},
				)
				w.get(t, crds, "", "widgets.example.com")
				w.removeFinalizers(t, widgets, in, fmt.Sprint("w", i))
			}
			w.awaitGone(t, crds, "", "widgets.example.com")
			want := "True/InstanceDeletionInProgress/CustomResource deletion is in progress, " +
				"False/InstanceDeletionCompleted/removed all instances"
			if got := strings.Join(seen(), ", "); got != want {
				t.Errorf("got values of Terminating\n%s, want\n%s", got, want)
			}
		})
	}
}

// watchCondition records the values of the condition kind of a CRD. The returned function blocks until the CRD is
// deleted, and returns the values.
func watchCondition(t *testing.T, w *testClient, name, kind string) func() []string {
	t.Helper()
	watching, err := w.at(crds, "").Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	return func() (values []string) {
		defer watching.Stop()
		for event := range watching.ResultChan() {
			o, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				t.Fatalf("watch: %v", event.Object)
			}
			if v := condition(o, kind); v != "" && (len(values) == 0 || values[len(values)-1] != v) {
				values = append(values, v)
			}
			if event.Type == "DELETED" {
				return values
			}
		}
		return values
	}
}

// TestUnservedCRDDeletion checks that the deletion of a CRD without served versions deletes its objects. (CRD-027)
func TestUnservedCRDDeletion(t *testing.T) {
	w := connect(t, testserver.Start(t))
	w.crd(t, "example.com", "Widget", "Namespaced")
	for i := range 5 {
		w.create(t, widgets, "default", object("Widget", "example.com/v1", fmt.Sprint("w", i)))
	}
	unserve := `{"spec":{"versions":[{"name":"v1","served":false,"storage":true,` +
		`"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`
	w.patch(t, crds, "", "widgets.example.com", unserve)
	w.delete(t, crds, "", "widgets.example.com", "")
	w.awaitGone(t, crds, "", "widgets.example.com")
	w.crd(t, "example.com", "Widget", "Namespaced")
	list, err := w.at(widgets, "").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 0 {
		t.Errorf("the recreated kind has %d objects, error %v, want none", len(list.Items), err)
	}
}

// TestNamesBecomeFree checks that a conflicting CRD gets its names when the first CRD is deleted or changes its names.
// (CRD-041)
func TestNamesBecomeFree(t *testing.T) {
	for what, free := range map[string]func(*testing.T, *testClient){
		"deleted": func(t *testing.T, w *testClient) { w.delete(t, crds, "", "widgets.example.com", "") },
		"renamed": func(t *testing.T, w *testClient) {
			w.patch(t, crds, "", "widgets.example.com", `{"spec":{"names":{"shortNames":["other"]}}}`)
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := connect(t, testserver.Start(t))
			first := definition("example.com", "Widget", "Namespaced")
			_ = unstructured.SetNestedStringSlice(first.Object, []string{"wd"}, "spec", "names", "shortNames")
			w.create(t, crds, "", first)
			second := definition("example.com", "Wader", "Namespaced")
			_ = unstructured.SetNestedStringSlice(second.Object, []string{"wd"}, "spec", "names", "shortNames")
			second = w.create(t, crds, "", second)
			if got := condition(second, "NamesAccepted"); !strings.HasPrefix(got, "False/ShortNamesConflict/") {
				t.Fatalf("got NamesAccepted %q, want a conflict", got)
			}
			if got := condition(second, "Established"); !strings.HasPrefix(got, "False/NotAccepted/") {
				t.Fatalf("got Established %q, want False", got)
			}
			free(t, w)
			w.await(t, crds, "", "waders.example.com", "is established", func(o *unstructured.Unstructured) bool {
				return strings.HasPrefix(condition(o, "Established"), "True/") &&
					strings.HasPrefix(condition(o, "NamesAccepted"), "True/")
			})
			gvr := widgets
			gvr.Resource = "waders"
			w.create(t, gvr, "default", object("Wader", "example.com/v1", "w"))
		})
	}
}

// TestNeverEstablished checks the deletion of a CRD that was never established. (CRD-043)
func TestNeverEstablished(t *testing.T) {
	w := connect(t, testserver.Start(t))
	w.crd(t, "example.com", "Widget", "Namespaced")
	second := definition("example.com", "Wader", "Namespaced")
	_ = unstructured.SetNestedField(second.Object, "widget", "spec", "names", "singular")
	w.create(t, crds, "", second)
	seen := watchCondition(t, w, "waders.example.com", "Terminating")
	w.delete(t, crds, "", "waders.example.com", "")
	w.awaitGone(t, crds, "", "waders.example.com")
	want := "True/InstanceDeletionInProgress/CustomResource deletion is in progress, " +
		"False/NeverEstablished/resource was never established"
	if got := strings.Join(seen(), ", "); got != want {
		t.Errorf("got values of Terminating\n%s, want\n%s", got, want)
	}
}

// TestNamesFreedBeforeRestart checks that names released just before a restart are accepted after it. (CRD-041)
func TestNamesFreedBeforeRestart(t *testing.T) {
	s := testserver.Start(t, testserver.OnDisk())
	w := connect(t, s)
	w.crd(t, "example.com", "Widget", "Namespaced")
	second := definition("example.com", "Wader", "Namespaced")
	_ = unstructured.SetNestedField(second.Object, "WidgetList", "spec", "names", "listKind")
	w.create(t, crds, "", second)
	w.crd(t, "example.com", "Third", "Namespaced")
	w.delete(t, crds, "", "widgets.example.com", "")
	s.Restart()
	w = connect(t, s)
	w.await(t, crds, "", "waders.example.com", "is established", func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(condition(o, "Established"), "True/")
	})
}
