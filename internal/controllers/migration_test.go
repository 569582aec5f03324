package controllers_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/testserver"
)

var storageMigrations = schema.GroupVersionResource{
	Group:    "storagemigration.k8s.io",
	Version:  "v1",
	Resource: "storageversionmigrations",
}

// TestMigrationWritesObjectsAtOtherVersions checks that a migration writes exactly the objects that are stored at
// another version, and removes that version from storedVersions. Clients read and write at both versions meanwhile.
// (VER-055 VER-056 VER-059)
func TestMigrationWritesObjectsAtOtherVersions(t *testing.T) {
	w := connect(t, testserver.Start(t))
	old := widgets
	old.Version = "v1beta1"
	crd := w.create(
		t,
		crds,
		"",
		definition("example.com", "Widget", "Namespaced", version("v1beta1", true, true), version("v1", true, false)),
	)
	for i := range 700 {
		w.create(t, old, "default", object("Widget", "example.com/v1beta1", fmt.Sprintf("old%03d", i)))
	}
	storeAt(t, w, crd.GetName(), "v1")
	w.create(t, widgets, "default", object("Widget", "example.com/v1", "new"))
	before := revisions(t, w)
	migration := object("StorageVersionMigration", "storagemigration.k8s.io/v1", "move")
	migration.Object["spec"] = map[string]any{"resource": map[string]any{"group": "example.com", "resource": "widgets"}}
	w.create(t, storageMigrations, "", migration)
	for i := 0; ; i++ {
		gvr := []schema.GroupVersionResource{old, widgets}[i%2]
		patch := fmt.Appendf(nil, `{"spec":{"n":%d}}`, i)
		if _, err := w.at(gvr, "default").Patch(
			t.Context(), "old699", types.MergePatchType, patch, metav1.PatchOptions{},
		); err != nil {
			t.Fatal(err)
		}
		if succeeded(w.get(t, storageMigrations, "", "move")) {
			break
		}
	}
	after := revisions(t, w)
	for name, revision := range before {
		if moved := after[name] != revision; moved != (name != "new") {
			t.Errorf("%s was written: got %v, want %v", name, moved, !moved)
		}
	}
	stored, _, _ := unstructured.NestedStringSlice(w.get(t, crds, "", crd.GetName()).Object, "status", "storedVersions")
	if !slices.Equal(stored, []string{"v1"}) {
		t.Errorf("got storedVersions %v, want [v1]", stored)
	}
}

// TestMigrationOfARecreatedCRD checks that a recreated CRD is migrated automatically again. (VER-055)
func TestMigrationOfARecreatedCRD(t *testing.T) {
	w := connect(t, testserver.Start(t, testserver.With(func(c *apiserver.Config) { c.AutoMigrateStorage = true })))
	old := widgets
	old.Version = "v1beta1"
	for range 2 {
		crd := w.create(
			t,
			crds,
			"",
			definition(
				"example.com", "Widget", "Namespaced", version("v1beta1", true, true), version("v1", true, false),
			),
		)
		w.create(t, old, "default", object("Widget", "example.com/v1beta1", "a"))
		storeAt(t, w, crd.GetName(), "v1")
		w.await(
			t,
			crds,
			"",
			crd.GetName(),
			"has only v1 in status.storedVersions",
			func(o *unstructured.Unstructured) bool {
				stored, _, _ := unstructured.NestedStringSlice(o.Object, "status", "storedVersions")
				return slices.Equal(stored, []string{"v1"})
			},
		)
		w.delete(t, crds, "", crd.GetName(), "")
		w.awaitGone(t, crds, "", crd.GetName())
	}
}

// TestOldAutomaticMigrationsAreDeleted checks that all finished automatic migrations of a resource are deleted except
// the newest one. Migrations that a user has created are kept.
func TestOldAutomaticMigrationsAreDeleted(t *testing.T) {
	w := connect(t, testserver.Start(t, testserver.With(func(c *apiserver.Config) { c.AutoMigrateStorage = true })))
	crd := w.create(
		t,
		crds,
		"",
		definition("example.com", "Widget", "Namespaced", version("v1beta1", true, true), version("v1", true, false)),
	)
	manual := object("StorageVersionMigration", "storagemigration.k8s.io/v1", "manual")
	manual.Object["spec"] = map[string]any{"resource": map[string]any{"group": "example.com", "resource": "widgets"}}
	w.create(t, storageMigrations, "", manual)
	w.await(t, storageMigrations, "", "manual", "has finished before the following changes", succeeded)
	for _, storage := range []string{"v1", "v1beta1", "v1", "v1beta1"} {
		storeAt(t, w, crd.GetName(), storage)
		w.await(t, crds, "", crd.GetName(), "has one stored version", func(o *unstructured.Unstructured) bool {
			stored, _, _ := unstructured.NestedStringSlice(o.Object, "status", "storedVersions")
			return slices.Equal(stored, []string{storage})
		})
	}
	eventually(t, "only the last automatic migration is kept", func(ctx context.Context) bool {
		list, err := w.at(storageMigrations, "").List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 2 || list.Items[0].GetName() != "manual" {
			return false
		}
		last := list.Items[1]
		return last.GetName() == fmt.Sprintf("%s-%.8s-5", crd.GetName(), crd.GetUID()) && succeeded(&last)
	})
}

// storeAt makes a version of a CRD its storage version.
func storeAt(t *testing.T, w *testClient, name, storage string) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the server may write the status meanwhile
		crd := w.get(t, crds, "", name)
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		for _, v := range versions {
			v := v.(map[string]any)
			v["storage"] = v["name"] == storage
		}
		if err := unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"); err != nil {
			return err
		}
		_, err := w.at(crds, "").Update(t.Context(), crd, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func revisions(t *testing.T, w *testClient) map[string]string {
	t.Helper()
	list, err := w.at(widgets, "default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, o := range list.Items {
		out[o.GetName()] = o.GetResourceVersion()
	}
	return out
}

func succeeded(o *unstructured.Unstructured) bool {
	list, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	return slices.ContainsFunc(list, func(c any) bool {
		m, _ := c.(map[string]any)
		return m["type"] == "Succeeded" && m["status"] == "True"
	})
}
