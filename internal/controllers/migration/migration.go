// Package migration processes StorageVersionMigrations (KEP-4192). For each one, it writes all objects of a resource
// without changing them. Each write stores the object at the current storage version. It then removes the other
// versions from the CRD's status.storedVersions.
package migration

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
	"github.com/trellis-k8s/trellis/internal/controllers/report"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Controller processes StorageVersionMigrations. The progress is stored in annotations of the StorageVersionMigration,
// so that another process can resume the migration. An object is skipped if another client has written it in the
// meantime. The migrations of one resource run one after the other. A few resources are migrated concurrently, so that
// a slow conversion webhook does not block the others.
type Controller struct {
	Config

	searches   informer.Queue[struct{}]             // triggers listPending
	work       informer.Queue[schema.GroupResource] // resources with pending migrations
	crdChanges informer.Queue[string]               // names of changed CRDs, if Automatic is set
	pace       flowcontrol.RateLimiter

	mu    sync.Mutex
	known map[string]bool // names of existing StorageVersionMigrations
	// pending holds the unfinished migrations of each resource, the oldest first. A resource without unfinished
	// migrations remains in the map until the condition of its CRD is updated.
	pending map[schema.GroupResource][]migrationRef
}

// Config configures a Controller.
type Config struct {
	Discovery discovery.DiscoveryInterface
	Dynamic   dynamic.Interface
	Metadata  metadata.Interface
	// Automatic is set if objects are migrated automatically after the storage version of their CRD has changed.
	Automatic bool
	// Migrating lists the CRDs whose condition reports a running migration at the start. The process that set the
	// condition may have stopped before the end of the migration.
	Migrating []string
}

// migrationRef identifies a StorageVersionMigration.
type migrationRef struct {
	name string
	uid  types.UID
}

const (
	fieldManager = "storage-version-migrator-controller" // upstream's field manager

	concurrentMigrations = 4
	// migrationRate is the maximum number of objects written per second. It leaves most of the server's capacity to
	// clients.
	migrationRate = 1000
)

var (
	crds       = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")
	migrations = storagemigrationv1.SchemeGroupVersion.WithResource("storageversionmigrations")
	kind       = storagemigrationv1.SchemeGroupVersion.WithKind("StorageVersionMigration")
)

// New returns a Controller.
func New(c Config) *Controller {
	return &Controller{
		Config: c, searches: informer.NewQueue[struct{}]("list migrations"),
		work:       informer.NewQueue[schema.GroupResource]("migrate"),
		crdChanges: informer.NewQueue[string]("create automatic migration"),
		pace:       flowcontrol.NewTokenBucketRateLimiter(migrationRate, migrationPage),
		known:      map[string]bool{}, pending: map[schema.GroupResource][]migrationRef{},
	}
}

// Run migrates objects until ctx is done.
func (m *Controller) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { m.searches.Work(ctx, 1, m.listPending) })
	running.Go(func() { m.work.Work(ctx, concurrentMigrations, m.migrate) })
	running.Go(func() { m.crdChanges.Work(ctx, 1, m.createAutomatic) })
	running.Wait()
}

// Observe queues the work that a change requires.
func (m *Controller) Observe(ch informer.Change) {
	switch ch.Kind.GroupKind() {
	case kind.GroupKind():
		if m.isNew(ch) {
			m.searches.AddAfter(struct{}{}, informer.BatchDelay)
		}
	case informer.CRDKind:
		for _, o := range ch.Objects() {
			m.crdChanged(schema.ParseGroupResource(o.Name))
			if m.Automatic && !ch.Deleted {
				m.crdChanges.AddAfter(o.Name, informer.BatchDelay)
			}
		}
	}
}

// isNew records the StorageVersionMigrations of a change, and reports whether one was created or deleted. Only then
// must the StorageVersionMigrations be listed again.
func (m *Controller) isNew(ch informer.Change) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case ch.Stopped:
		return false
	case ch.Object == nil:
		clear(m.known)
	case ch.Deleted:
		delete(m.known, ch.Object.Name)
		return true
	case m.known[ch.Object.Name]:
		return false
	}
	for _, o := range ch.Objects() {
		m.known[o.Name] = true
	}
	return true
}

// crdChanged queues a resource with pending migrations, which may wait for a change of the CRD.
func (m *Controller) crdChanged(gr schema.GroupResource) {
	m.mu.Lock()
	_, isPending := m.pending[gr]
	m.mu.Unlock()
	if isPending {
		m.work.Add(gr)
	}
}

// listPending lists the unfinished StorageVersionMigrations, and queues their resources.
func (m *Controller) listPending(ctx context.Context, _ struct{}) error {
	all, err := m.Dynamic.Resource(migrations).List(ctx, metav1.ListOptions{})
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
	for _, crd := range m.Migrating {
		m.pending[schema.ParseGroupResource(crd)] = nil
	}
	m.Migrating = nil
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
func (m *Controller) next(gr schema.GroupResource) (first migrationRef, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pending[gr]) == 0 {
		return migrationRef{}, false
	}
	return m.pending[gr][0], true
}

func (m *Controller) removePending(gr schema.GroupResource, one migrationRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending[gr] = slices.DeleteFunc(m.pending[gr], func(o migrationRef) bool { return o == one })
}

// migrate runs the pending migrations of a resource. After an error the resource is queued again.
func (m *Controller) migrate(ctx context.Context, gr schema.GroupResource) error {
	for one, more := m.next(gr); more; one, more = m.next(gr) {
		svm, err := m.Dynamic.Resource(migrations).Get(ctx, one.name, metav1.GetOptions{})
		if informer.IgnoreNotFound(err) != nil {
			return err
		}
		if err == nil && svm.GetUID() == one.uid && !finished(svm) {
			g := &migration{Controller: m, object: svm, resource: gr.WithVersion("")}
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
func (m *Controller) clearMigrating(ctx context.Context, gr schema.GroupResource) error {
	name := gr.Resource + "." + gr.Group
	crd, err := m.Dynamic.Resource(crds).Get(ctx, name, metav1.GetOptions{})
	if informer.IgnoreNotFound(err) != nil {
		return err
	}
	if err == nil && report.IsTrue(crd, resource.StorageMigrating) {
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
	return svm.GetDeletionTimestamp() != nil || report.IsTrue(svm, "Succeeded") || report.IsTrue(svm, "Failed")
}
