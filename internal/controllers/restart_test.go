package controllers_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/testserver"
)

const gadgetCRD = "gadgets.example.com"

// addCondition adds a condition to a CRD, like one that an earlier server has written.
func (w *testClient) addCondition(t *testing.T, name, kind, status string) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		crd := w.get(t, crds, "", name)
		list, _, _ := unstructured.NestedSlice(crd.Object, "status", "conditions")
		list = append(list, map[string]any{
			"type": kind, "status": status, "reason": "Left", "message": "left",
			"lastTransitionTime": "2026-01-01T00:00:00Z",
		})
		if err := unstructured.SetNestedSlice(crd.Object, list, "status", "conditions"); err != nil {
			return err
		}
		_, err := w.at(crds, "").UpdateStatus(t.Context(), crd, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMigrationDeletedBeforeRestart checks two CRDs whose condition reports a migration at the start of the server.
// If the StorageVersionMigration no longer exists, the condition is updated. Otherwise it is kept until the
// StorageVersionMigration is deleted. (VER-060)
func TestMigrationDeletedBeforeRestart(t *testing.T) {
	s := testserver.Start(t, testserver.OnDisk())
	d := &migrationTest{T: t, testClient: connect(t, s), webhook: newTestWebhook(t)}
	d.create(t, crds, "", d.webhook.definition("v1"))
	d.create(t, widgets, "default", object("Widget", "example.com/v1", "a"))
	storeAt(t, d.testClient, widgetCRD, "v2")
	d.webhook.stop()
	d.migrate("move", "widgets")
	d.awaitMigrating("True/StorageVersionMigrationInProgress/")
	d.create(t, crds, "", definition("example.com", "Gadget", "Namespaced"))
	d.addCondition(t, gadgetCRD, resource.StorageMigrating, "True")

	s.Restart()
	d.testClient = connect(t, s)
	deleted := "False/StorageVersionMigrationDeleted/the StorageVersionMigration was deleted before it had finished"
	d.await(t, crds, "", gadgetCRD, "has the condition False", func(o *unstructured.Unstructured) bool {
		return condition(o, resource.StorageMigrating) == deleted
	})
	if c := condition(d.get(t, crds, "", widgetCRD), resource.StorageMigrating); c[:5] != "True/" {
		t.Errorf("got condition %s of the CRD with a running migration, want True", c)
	}
	d.delete(t, storageMigrations, "", "move", "")
	d.awaitMigrating(deleted)
	d.requireStored("v1", "v2")
}

// TestWebhookConditionAfterRestart checks CRDs with a condition in which an earlier server has reported an unreachable
// webhook. The condition is updated even if no object is converted. The webhooks of other CRDs are not contacted.
// (CNV-025 CNV-059)
func TestWebhookConditionAfterRestart(t *testing.T) {
	s := testserver.Start(t, testserver.OnDisk())
	w := connect(t, s)
	hook, other := newTestWebhook(t), newTestWebhook(t)
	gadget := definition("example.com", "Gadget", "Namespaced")
	if err := unstructured.SetNestedMap(gadget.Object, other.conversion(), "spec", "conversion"); err != nil {
		t.Fatal(err)
	}
	w.create(t, crds, "", hook.definition("v1"))
	w.create(t, crds, "", gadget)
	w.create(t, crds, "", definition("example.com", "Gizmo", "Namespaced"))
	w.create(t, widgets, "default", object("Widget", "example.com/v1", "a"))
	w.addCondition(t, widgetCRD, resource.WebhookReachable, "False")
	w.addCondition(t, "gizmos.example.com", resource.WebhookReachable, "False")

	s.Restart()
	w = connect(t, s)
	w.await(
		t,
		crds,
		"",
		"gizmos.example.com",
		"has no condition, because it has no webhook",
		func(o *unstructured.Unstructured) bool {
			return condition(o, resource.WebhookReachable) == ""
		},
	)
	w.await(t, crds, "", widgetCRD, "has the condition True", func(o *unstructured.Unstructured) bool {
		return condition(o, resource.WebhookReachable) == "True/Reached/the conversion webhook answers"
	})
	w.awaitEvent(t, "ConversionWebhookReachable", "Normal")
	if n := hook.calls.Load(); n != 0 {
		t.Errorf("the update took %d webhook calls, want 0", n)
	}
	if n := other.connections.Load(); n != 0 {
		t.Errorf("got %d connections to the webhook of a CRD without a condition, want 0", n)
	}
	if c := condition(w.get(t, crds, "", gadgetCRD), resource.WebhookReachable); c != "" {
		t.Errorf("got condition %s of the CRD, want none", c)
	}
}
