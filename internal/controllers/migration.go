package controllers

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// migrationController processes StorageVersionMigrations (KEP-4192). For each one, it writes all objects of a resource
// without changing them. Each write stores the object at the current storage version. It then removes the other
// versions from the CRD's status.storedVersions.
//
// The progress is stored in annotations of the StorageVersionMigration, so that another process can resume the
// migration. An object is skipped if another client has written it in the meantime. The migrations of one resource run
// one after the other. A few resources are migrated concurrently, so that a slow conversion webhook does not block the
// others.
type migrationController struct {
	clients    *clients
	automatic  bool
	searches   queue[struct{}]             // triggers listPending
	work       queue[schema.GroupResource] // resources with pending migrations
	crdChanges queue[string]               // names of changed CRDs, if automatic is set
	pace       flowcontrol.RateLimiter

	mu    sync.Mutex
	known map[string]bool // names of existing StorageVersionMigrations
	// pending holds the unfinished migrations of each resource, the oldest first. A resource without unfinished
	// migrations remains in the map until the condition of its CRD is updated.
	pending map[schema.GroupResource][]migrationRef
	initial []string // names of CRDs that the first listPending adds to pending
}

// migrationRef identifies a StorageVersionMigration.
type migrationRef struct {
	name string
	uid  types.UID
}

const (
	migrationFieldManager = "storage-version-migrator-controller" // upstream's field manager

	concurrentMigrations = 4
	// migrationRate is the maximum number of objects written per second. It leaves most of the server's capacity to
	// clients.
	migrationRate = 1000
)

var (
	migrationKind      = schema.GroupKind{Group: "storagemigration.k8s.io", Kind: "StorageVersionMigration"}
	migrationResources = schema.GroupVersionResource{
		Group: "storagemigration.k8s.io", Version: "v1", Resource: "storageversionmigrations",
	}
)

// newMigrationController returns a migrationController. migrating lists the CRDs whose condition reports a running
// migration.
func newMigrationController(c *clients, automatic bool, migrating []string) *migrationController {
	return &migrationController{
		clients: c, automatic: automatic,
		searches: newQueue[struct{}]("list migrations"), work: newQueue[schema.GroupResource]("migrate"),
		crdChanges: newQueue[string]("create automatic migration"),
		pace:       flowcontrol.NewTokenBucketRateLimiter(migrationRate, migrationPage),
		known:      map[string]bool{}, pending: map[schema.GroupResource][]migrationRef{}, initial: migrating,
	}
}

func (m *migrationController) run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { m.searches.work(ctx, 1, m.listPending) })
	running.Go(func() { m.work.work(ctx, concurrentMigrations, m.migrate) })
	running.Go(func() { m.crdChanges.work(ctx, 1, m.createAutomatic) })
	running.Wait()
}

func (m *migrationController) observe(ch change) {
	switch ch.kind.groupKind() {
	case migrationKind:
		if m.isNew(ch) {
			m.searches.AddAfter(struct{}{}, batchDelay)
		}
	case crdKind:
		for _, o := range ch.objects() {
			m.crdChanged(schema.ParseGroupResource(o.Name))
			if m.automatic && !ch.deleted {
				m.crdChanges.AddAfter(o.Name, batchDelay)
			}
		}
	}
}

// isNew records the StorageVersionMigrations of a change, and reports whether one was created or deleted. Only then
// must the StorageVersionMigrations be listed again.
func (m *migrationController) isNew(ch change) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case ch.stopped:
		return false
	case ch.object == nil:
		clear(m.known)
	case ch.deleted:
		delete(m.known, ch.object.Name)
		return true
	case m.known[ch.object.Name]:
		return false
	}
	for _, o := range ch.objects() {
		m.known[o.Name] = true
	}
	return true
}

// crdChanged queues a resource with pending migrations, which may wait for a change of the CRD.
func (m *migrationController) crdChanged(gr schema.GroupResource) {
	m.mu.Lock()
	_, isPending := m.pending[gr]
	m.mu.Unlock()
	if isPending {
		m.work.Add(gr)
	}
}

// listPending lists the unfinished StorageVersionMigrations, and queues their resources.
func (m *migrationController) listPending(ctx context.Context, _ struct{}) error {
	all, err := m.clients.dynamic.Resource(migrationResources).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	slices.SortFunc(all.Items, func(a, b unstructured.Unstructured) int {
		return cmp.Or(
			a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), strings.Compare(a.GetName(), b.GetName()))
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	for gr := range m.pending {
		m.pending[gr] = nil
	}
	for _, crd := range m.initial {
		m.pending[schema.ParseGroupResource(crd)] = nil
	}
	m.initial = nil
	for i := range all.Items {
		if o := &all.Items[i]; !finished(o) {
			m.pending[resourceOf(o)] = append(m.pending[resourceOf(o)], migrationRef{o.GetName(), o.GetUID()})
		}
	}
	for gr := range m.pending {
		m.work.Add(gr)
	}
	return nil
}

// next returns the first pending migration of a resource. more is false if there is none.
func (m *migrationController) next(gr schema.GroupResource) (first migrationRef, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pending[gr]) == 0 {
		return migrationRef{}, false
	}
	return m.pending[gr][0], true
}

func (m *migrationController) removePending(gr schema.GroupResource, one migrationRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending[gr] = slices.DeleteFunc(m.pending[gr], func(o migrationRef) bool { return o == one })
}

// migrate runs the pending migrations of a resource. After an error the resource is queued again.
func (m *migrationController) migrate(ctx context.Context, gr schema.GroupResource) error {
	for one, more := m.next(gr); more; one, more = m.next(gr) {
		svm, err := m.clients.dynamic.Resource(migrationResources).Get(ctx, one.name, metav1.GetOptions{})
		if ignoreNotFound(err) != nil {
			return err
		}
		if err == nil && svm.GetUID() == one.uid && !finished(svm) {
			g := &migration{migrationController: m, object: svm, resource: gr.WithVersion("")}
			if err := g.run(ctx); err != nil {
				return err
			}
		}
		m.removePending(gr, one)
	}
	return m.clearMigrating(ctx, gr)
}

// clearMigrating updates a CRD whose condition reports a migration that no longer exists. The StorageVersionMigration
// was deleted while it was running, or while no server was running.
func (m *migrationController) clearMigrating(ctx context.Context, gr schema.GroupResource) error {
	name := gr.Resource + "." + gr.Group
	crd, err := m.crds().Get(ctx, name, metav1.GetOptions{})
	if ignoreNotFound(err) != nil {
		return err
	}
	if err == nil && isConditionTrue(crd, resource.StorageMigrating) {
		err := m.setMigrating(ctx, name, "False", "StorageVersionMigrationDeleted",
			"the StorageVersionMigration was deleted before it had finished")
		if err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pending[gr]) == 0 {
		delete(m.pending, gr)
	}
	return nil
}

func resourceOf(svm *unstructured.Unstructured) (r schema.GroupResource) {
	r.Group, _, _ = unstructured.NestedString(svm.Object, "spec", "resource", "group")
	r.Resource, _, _ = unstructured.NestedString(svm.Object, "spec", "resource", "resource")
	return r
}

// finished reports whether a migration needs no more work, because it has succeeded, failed or is being deleted.
func finished(svm *unstructured.Unstructured) bool {
	return svm.GetDeletionTimestamp() != nil || isConditionTrue(svm, "Succeeded") || isConditionTrue(svm, "Failed")
}

func (m *migrationController) crds() dynamic.ResourceInterface {
	gv := crdKind.WithVersion("v1").GroupVersion()
	return m.clients.dynamic.Resource(gv.WithResource("customresourcedefinitions"))
}
