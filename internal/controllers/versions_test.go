package controllers_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/testserver"
)

// TestDeletionOfUnservedVersions checks that a namespace and a CRD can be deleted if objects are stored at versions
// that are no longer served, or if no version is served. (VER-065 VER-046)
func TestDeletionOfUnservedVersions(t *testing.T) {
	for name, last := range map[string][]any{
		"another version is served": {version("v1beta1", false, false), version("v1", true, true)},
		"none is served":            {version("v1beta1", false, false), version("v1", false, true)},
	} {
		t.Run(name, func(t *testing.T) {
			w := connect(t, testserver.Start(t))
			old := widgets
			old.Version = "v1beta1"
			w.create(t, namespaces, "", namespace("n"))
			crd := w.create(
				t, crds, "", definition("example.com", "Widget", "Namespaced", version("v1beta1", true, true)),
			)
			for i := range 20 {
				w.create(
					t,
					old,
					[]string{"default", "n"}[i%2],
					object("Widget", "example.com/v1beta1", fmt.Sprint("w", i)),
				)
			}
			set := func(versions []any) {
				t.Helper()
				crd = w.get(t, crds, "", crd.GetName())
				crd.Object["spec"].(map[string]any)["versions"] = versions
				var err error
				if crd, err = w.at(crds, "").Update(t.Context(), crd, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			set([]any{version("v1beta1", false, false), version("v1", true, true)})
			w.create(t, widgets, "n", object("Widget", "example.com/v1", "new"))
			w.delete(t, namespaces, "", "n", "")
			w.awaitGone(t, namespaces, "", "n")
			w.awaitGone(t, widgets, "n", "w1")
			w.get(t, widgets, "default", "w0")
			set(last)
			w.delete(t, crds, "", crd.GetName(), "")
			w.awaitGone(t, crds, "", crd.GetName())
			// a new kind with the same name has no objects
			w.create(t, crds, "", definition("example.com", "Widget", "Namespaced", version("v1", true, true)))
			if left, err := w.at(widgets, "").List(t.Context(), metav1.ListOptions{}); err != nil ||
				len(left.Items) != 0 {
				t.Errorf("got remaining objects %v, error %v, want none", left, err)
			}
		})
	}
}
