package controllers_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/apiserver"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
	"github.com/trellis-k8s/trellis/testserver"
)

// migrationTest is a storage migration of Widgets from v1 to v2. The conversion webhook of Widgets stops during the
// migration. A second kind, Gadgets, must not be affected.
type migrationTest struct {
	*testing.T
	*testClient
	webhook *testWebhook
	v2      schema.GroupVersionResource
}

var gadgets = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}

const (
	migratedObjects = 700 // number of objects, which fill two pages of the migration
	widgetCRD       = "widgets.example.com"
)

// newMigrationTest returns a migration whose first page is written and whose webhook is stopped.
func newMigrationTest(t *testing.T) *migrationTest {
	t.Helper()
	d := &migrationTest{T: t, testClient: connect(t, testserver.Start(t)), webhook: newTestWebhook(t), v2: widgets}
	d.v2.Version = "v2"
	d.create(t, crds, "", d.webhook.definition("v1"))
	for i := range migratedObjects {
		d.create(t, widgets, "default", object("Widget", "example.com/v1", fmt.Sprintf("w%04d", i)))
	}
	d.create(
		t,
		crds,
		"",
		definition("example.com", "Gadget", "Namespaced", version("v1", true, true), version("v2", true, false)),
	)
	d.create(t, gadgets, "default", object("Gadget", "example.com/v1", "g"))
	storeAt(t, d.testClient, widgetCRD, "v2")
	d.webhook.stopAfter.Store(600) // the webhook stops during the second page
	d.migrate("move", "widgets")
	d.await(t, storageMigrations, "", "move", "waits for the webhook", func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(condition(o, "Running"), "True/StorageVersionMigrationInProgress/will try again: ") &&
			strings.Contains(condition(o, "Running"), "conversion webhook for example.com/v1, Kind=Widget failed")
	})
	if c := condition(d.get(t, storageMigrations, "", "move"), "Succeeded") + condition(
		d.get(t, storageMigrations, "", "move"), "Failed",
	); c != "" {
		t.Fatalf("the migration has finished without its webhook: %s", c)
	}
	if at := d.progress("move"); at != "500/700" {
		t.Errorf("got progress %s, want 500/700", at)
	}
	d.requireStored("v1", "v2")
	return d
}

func (d *migrationTest) migrate(name, resource string) {
	d.Helper()
	svm := object("StorageVersionMigration", "storagemigration.k8s.io/v1", name)
	svm.Object["spec"] = map[string]any{"resource": map[string]any{"group": "example.com", "resource": resource}}
	d.create(d.T, storageMigrations, "", svm)
}

func (d *migrationTest) progress(name string) string {
	return d.get(d.T, storageMigrations, "", name).GetAnnotations()[resource.MigrationProgressAnnotation]
}

// requireStored fails the test unless status.storedVersions of the CRD is want.
func (d *migrationTest) requireStored(want ...string) {
	d.Helper()
	got, _, _ := unstructured.NestedStringSlice(d.get(d.T, crds, "", widgetCRD).Object, "status", "storedVersions")
	if !slices.Equal(got, want) {
		d.Errorf("storedVersions are %v, want %v", got, want)
	}
}

// requireOtherKindWorks checks that another kind can be read, written and migrated.
func (d *migrationTest) requireOtherKindWorks() {
	d.Helper()
	other := gadgets
	other.Version = "v2"
	d.patch(d.T, other, "default", "g", `{"spec":{"a":"b"}}`)
	storeAt(d.T, d.testClient, "gadgets.example.com", "v2")
	d.migrate("others", "gadgets")
	d.awaitEnd("others", "Succeeded")
}

func (d *migrationTest) awaitEnd(name, kind string) {
	d.Helper()
	d.await(d.T, storageMigrations, "", name, "ends", func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(condition(o, kind), "True/")
	})
}

// awaitMigrating waits until the condition StorageMigrating of the CRD begins with want.
func (d *migrationTest) awaitMigrating(want string) {
	d.Helper()
	d.await(d.T, crds, "", widgetCRD, "has the condition "+want, func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(condition(o, "StorageMigrating"), want)
	})
}

// TestMigrationResumesWithItsWebhook checks that a migration without its webhook reports the error, waits, and
// resumes as soon as the webhook is reachable. No other kind is affected, and storedVersions change only at the end.
// (CNV-059 VER-055 VER-056 VER-060)
func TestMigrationResumesWithItsWebhook(t *testing.T) {
	d := newMigrationTest(t)
	d.awaitMigrating("True/StorageVersionMigrationInProgress/")
	d.requireOtherKindWorks()
	converted := d.webhook.objects.Load()
	d.webhook.restart()
	d.awaitEnd("move", "Succeeded")
	d.awaitMigrating("False/StorageVersionMigrationSucceeded/")
	d.requireStored("v2")
	if n := d.webhook.objects.Load() - converted; n > migratedObjects-500 {
		t.Errorf("%d objects were converted after the first 500 of %d", n, migratedObjects)
	}
	if at := d.progress("move"); at != "700/700" {
		t.Errorf("got final progress %s, want 700/700", at)
	}
	d.webhook.stop()
	if list, err := d.at(d.v2, "default").List(t.Context(), metav1.ListOptions{}); err != nil ||
		len(list.Items) != migratedObjects {
		t.Errorf("list migrated objects without the webhook: got %d objects, error %v", len(list.Items), err)
	}
}

// TestMigrationDeletedWhileRunning checks that a deleted migration stops and that the condition of the CRD reports
// it. Another migration writes the remaining objects. (VER-060)
func TestMigrationDeletedWhileRunning(t *testing.T) {
	d := newMigrationTest(t)
	d.delete(t, storageMigrations, "", "move", "")
	d.awaitMigrating("False/StorageVersionMigrationDeleted/")
	d.requireStored("v1", "v2")
	d.webhook.restart()
	d.migrate("again", "widgets")
	d.awaitEnd("again", "Succeeded")
	d.requireStored("v2")
	if at := d.progress("again"); at != "700/700" {
		t.Errorf("got final progress %s, want 700/700", at)
	}
}

// TestMigrationToAnotherStorageVersion checks that a migration restarts when the storage version changes, and sets
// the right storedVersions. (VER-060)
func TestMigrationToAnotherStorageVersion(t *testing.T) {
	d := newMigrationTest(t)
	storeAt(t, d.testClient, widgetCRD, "v1")
	d.await(
		t,
		storageMigrations,
		"",
		"move",
		"must convert migrated objects back",
		func(o *unstructured.Unstructured) bool {
			return strings.Contains(
				condition(o, "Running"), "conversion webhook for example.com/v2, Kind=Widget failed",
			)
		},
	)
	d.requireStored("v1", "v2")
	d.webhook.restart()
	d.awaitEnd("move", "Succeeded")
	d.requireStored("v1")
	d.webhook.stop()
	if list, err := d.at(widgets, "default").List(t.Context(), metav1.ListOptions{}); err != nil ||
		len(list.Items) != migratedObjects {
		t.Errorf("list migrated objects without the webhook: got %d objects, error %v", len(list.Items), err)
	}
}

// TestStorageVersionChangesAtTheEndOfAMigration changes the storage version back and forth during the last webhook
// call. The migration must start over, because in the meantime objects were written at the previous version. (VER-060)
func TestStorageVersionChangesAtTheEndOfAMigration(t *testing.T) {
	d := &migrationTest{T: t, testClient: connect(t, testserver.Start(t)), webhook: newTestWebhook(t), v2: widgets}
	d.v2.Version = "v2"
	d.create(t, crds, "", d.webhook.definition("v1"))
	d.create(t, widgets, "default", object("Widget", "example.com/v1", "a"))
	storeAt(t, d.testClient, widgetCRD, "v2")
	once := sync.OnceFunc(func() {
		storeAt(t, d.testClient, widgetCRD, "v1")
		d.create(t, widgets, "default", object("Widget", "example.com/v1", "b"))
		storeAt(t, d.testClient, widgetCRD, "v2")
	})
	d.webhook.onConvert.Store(&once)
	d.migrate("move", "widgets")
	d.awaitEnd("move", "Succeeded")
	d.requireStored("v2")
	d.webhook.stop()
	if list, err := d.at(d.v2, "default").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 2 {
		t.Errorf("list migrated objects without the webhook: got %d objects, error %v", len(list.Items), err)
	}
}

// TestTwoMigrationsOfAResource checks that migrations of one resource run one after the other. The controller does not
// read a waiting migration, and starts it as soon as the first one has finished. (VER-060)
func TestTwoMigrationsOfAResource(t *testing.T) {
	log := filepath.Join(t.TempDir(), "audit")
	s := testserver.Start(
		t, testserver.Audit(log, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]"),
	)
	d := &migrationTest{T: t, testClient: connect(t, s), webhook: newTestWebhook(t)}
	d.create(t, crds, "", d.webhook.definition("v1"))
	d.create(t, widgets, "default", object("Widget", "example.com/v1", "a"))
	d.create(
		t,
		crds,
		"",
		definition("example.com", "Gadget", "Namespaced", version("v1", true, true), version("v2", true, false)),
	)
	d.create(t, gadgets, "default", object("Gadget", "example.com/v1", "g"))
	storeAt(t, d.testClient, widgetCRD, "v2")
	held := make(chan struct{})
	hold := func() { <-held }
	d.webhook.onConvert.Store(&hold)
	release := sync.OnceFunc(func() { close(held) })
	defer release()
	d.migrate("first", "widgets")
	eventually(t, "the webhook is called", func(context.Context) bool { return d.webhook.objects.Load() > 0 })
	d.migrate("second", "widgets")
	d.requireOtherKindWorks()
	if requests := countRequests(t, log, "second"); requests != 0 {
		t.Errorf("the waiting migration was read %d times, want 0", requests)
	}
	if c := condition(d.get(t, storageMigrations, "", "second"), "Running"); c != "" {
		t.Errorf("got condition Running %s of the waiting migration, want none", c)
	}
	release()
	d.awaitEnd("first", "Succeeded")
	d.awaitEnd("second", "Succeeded")
}

// countRequests returns the number of requests for a migration from the server's own controllers.
func countRequests(t *testing.T, log, name string) (n int) {
	t.Helper()
	lines, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		if strings.Contains(line, "/storageversionmigrations/"+name) && strings.Contains(line, "trellis-loopback") {
			n++
		}
	}
	return n
}

// TestMigrationOfADeletedCRD checks that a CRD with a blocked migration can be deleted, and that the migration then
// fails. The migration of a new CRD with the same name is independent. (CNV-075)
func TestMigrationOfADeletedCRD(t *testing.T) {
	d := newMigrationTest(t)
	d.delete(t, crds, "", widgetCRD, "")
	d.awaitGone(t, crds, "", widgetCRD)
	d.await(t, storageMigrations, "", "move", "fails", func(o *unstructured.Unstructured) bool {
		return condition(o, "Failed") == "True/StorageVersionMigrationFailed/there is no resource widgets.example.com"
	})
	d.requireOtherKindWorks()
	d.webhook.restart()
	d.create(t, crds, "", d.webhook.definition("v1"))
	d.create(t, widgets, "default", object("Widget", "example.com/v1", "a"))
	if c := condition(d.get(t, crds, "", widgetCRD), "StorageMigrating"); c != "" {
		t.Errorf("got condition StorageMigrating %s of the new CRD, want none", c)
	}
	storeAt(t, d.testClient, widgetCRD, "v2")
	d.migrate("again", "widgets")
	d.awaitEnd("again", "Succeeded")
	d.requireStored("v2")
}

// TestMigrationThatIsRefused checks that a migration fails with the reason if the server rejects a write, and that
// the next migration of the resource runs.
func TestMigrationThatIsRefused(t *testing.T) {
	e := storagetest.StartEtcd(t) // etcd rejects objects of 2 MiB
	d := &migrationTest{
		T: t,
		testClient: connect(
			t, testserver.Start(t, testserver.With(func(c *apiserver.Config) { c.Etcd.Servers = []string{e.URL} })),
		),
		webhook: newTestWebhook(t),
	}
	d.create(t, crds, "", d.webhook.definition("v1"))
	d.create(t, widgets, "default", object("Widget", "example.com/v1", "a"))
	storeAt(t, d.testClient, widgetCRD, "v2")
	d.webhook.extraBytes.Store(2 << 20)
	d.migrate("move", "widgets")
	d.await(t, storageMigrations, "", "move", "fails", func(o *unstructured.Unstructured) bool {
		return strings.HasPrefix(condition(o, "Failed"), "True/StorageVersionMigrationFailed/default/a: ") &&
			strings.Contains(condition(o, "Failed"), "too large")
	})
	d.awaitMigrating("False/StorageVersionMigrationFailed/")
	d.requireStored("v1", "v2")
	d.migrate("again", "widgets")
	d.awaitEnd("again", "Failed")
	d.delete(t, widgets, "default", "a", "")
	d.migrate("without", "widgets")
	d.awaitEnd("without", "Succeeded")
	d.requireStored("v2")
}

// TestMigrationOfUnknownResource checks that a migration of an unknown resource fails, even if another API server is
// unavailable.
func TestMigrationOfUnknownResource(t *testing.T) {
	d := &migrationTest{T: t, testClient: connect(t, testserver.Start(t))}
	away := object("APIService", "apiregistration.k8s.io/v1", "v1.away.example.com")
	away.Object["spec"] = map[string]any{
		"group": "away.example.com", "version": "v1", "groupPriorityMinimum": int64(1), "versionPriority": int64(1),
		"insecureSkipTLSVerify": true,
		"service":               map[string]any{"namespace": "default", "name": "away"},
	}
	d.create(
		t,
		schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
		"",
		away,
	)
	d.migrate("move", "nothing")
	d.await(t, storageMigrations, "", "move", "fails", func(o *unstructured.Unstructured) bool {
		return condition(o, "Failed") == "True/StorageVersionMigrationFailed/there is no resource nothing.example.com"
	})
}

// TestHangingWebhookBlocksNoOtherMigration checks that a webhook that does not respond blocks only the migration of
// its kind.
func TestHangingWebhookBlocksNoOtherMigration(t *testing.T) {
	d := &migrationTest{T: t, testClient: connect(t, testserver.Start(t)), webhook: newTestWebhook(t)}
	d.create(t, crds, "", d.webhook.definition("v1"))
	d.create(t, widgets, "default", object("Widget", "example.com/v1", "a"))
	d.create(
		t,
		crds,
		"",
		definition("example.com", "Gadget", "Namespaced", version("v1", true, true), version("v2", true, false)),
	)
	d.create(t, gadgets, "default", object("Gadget", "example.com/v1", "g"))
	storeAt(t, d.testClient, widgetCRD, "v2")
	d.webhook.hanging.Store(true)
	d.migrate("move", "widgets")
	eventually(t, "the webhook is called", func(context.Context) bool { return d.webhook.calls.Load() > 0 })
	d.requireOtherKindWorks()
	d.delete(t, crds, "", widgetCRD, "")
	d.awaitGone(t, crds, "", widgetCRD)
	if _, err := d.at(crds, "").Get(t.Context(), widgetCRD, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}
