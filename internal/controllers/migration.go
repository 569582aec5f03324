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

// migrationController does what StorageVersionMigrations ask for (KEP-4192): it writes every object of a resource
// once more as it is, which stores it at the storage version of now, and then takes the other versions out of the
// CRD's status.storedVersions.
//
// How far it is stands in annotations of the StorageVersionMigration, so that another process goes on where one has
// ended. An object that somebody else writes meanwhile needs no more. A resource's migrations are done one after the
// other, a few resources at the same time, so that one whose webhook keeps everybody waiting does not keep the
// others.
type migrationController struct {
	clients    *clients
	automatic  bool
	searches   queue[struct{}]             // at the StorageVersionMigrations that there are
	work       queue[schema.GroupResource] // those with something to do
	crdChanges queue[string]               // names of CRDs, if automatic
	pace       flowcontrol.RateLimiter

	mu    sync.Mutex
	known map[string]bool // names of StorageVersionMigrations that were heard of
	// pending is what there is to do of a resource, the oldest first. A resource is in it until its CRD says no
	// longer that it is being migrated.
	pending map[schema.GroupResource][]migrationRef
	initial []string // names of CRDs that will be in todo once it is known what there is to do
}

// migrationRef is one StorageVersionMigration.
type migrationRef struct {
	name string
	uid  types.UID
}

const (
	migrationFieldManager = "storage-version-migrator-controller" // upstream's field manager

	concurrentMigrations = 4
	// migrationRate is how many objects are written in a second at most, so that clients have most of the server.
	migrationRate = 1000
)

var (
	migrationKind      = schema.GroupKind{Group: "storagemigration.k8s.io", Kind: "StorageVersionMigration"}
	migrationResources = schema.GroupVersionResource{Group: "storagemigration.k8s.io", Version: "v1", Resource: "storageversionmigrations"}
)

// newMigrationController has nothing to do but for the CRDs that say that they are being migrated.
func newMigrationController(c *clients, automatic bool, migrating []string) *migrationController {
	return &migrationController{
		clients: c, automatic: automatic, searches: newQueue[struct{}]("find migrations"), work: newQueue[schema.GroupResource]("migrate"),
		crdChanges: newQueue[string]("migrate by itself"), pace: flowcontrol.NewTokenBucketRateLimiter(migrationRate, migrationPage),
		known: map[string]bool{}, pending: map[schema.GroupResource][]migrationRef{}, initial: migrating,
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

// isNew says that there are other StorageVersionMigrations than before: what the work itself writes to one is no reason
// to look for more.
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

// crdChanged has a migration go on that may have waited for that.
func (m *migrationController) crdChanged(of schema.GroupResource) {
	m.mu.Lock()
	_, open := m.pending[of]
	m.mu.Unlock()
	if open {
		m.work.Add(of)
	}
}

// listPending finds what there is to do.
func (m *migrationController) listPending(ctx context.Context, _ struct{}) error {
	all, err := m.clients.dynamic.Resource(migrationResources).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	slices.SortFunc(all.Items, func(a, b unstructured.Unstructured) int {
		return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), strings.Compare(a.GetName(), b.GetName()))
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	for of := range m.pending {
		m.pending[of] = nil
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
	for of := range m.pending {
		m.work.Add(of)
	}
	return nil
}

// next is what is to be done first of a resource; nothing is if there is no more.
func (m *migrationController) next(of schema.GroupResource) (first migrationRef, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pending[of]) == 0 {
		return migrationRef{}, false
	}
	return m.pending[of][0], true
}

func (m *migrationController) removePending(of schema.GroupResource, one migrationRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending[of] = slices.DeleteFunc(m.pending[of], func(o migrationRef) bool { return o == one })
}

// migrate does all StorageVersionMigrations of a resource, or what is left of them. An error brings it back.
func (m *migrationController) migrate(ctx context.Context, of schema.GroupResource) error {
	for one, more := m.next(of); more; one, more = m.next(of) {
		svm, err := m.clients.dynamic.Resource(migrationResources).Get(ctx, one.name, metav1.GetOptions{})
		if ignoreNotFound(err) != nil {
			return err
		}
		if err == nil && svm.GetUID() == one.uid && !finished(svm) {
			if err := (&migration{migrationController: m, object: svm, resource: of.WithVersion("")}).run(ctx); err != nil {
				return err
			}
		}
		m.removePending(of, one)
	}
	return m.clearMigrating(ctx, of)
}

// clearMigrating has the CRD say no longer that it is being migrated when somebody has deleted what asked for it,
// here or while no server ran.
func (m *migrationController) clearMigrating(ctx context.Context, of schema.GroupResource) error {
	name := of.Resource + "." + of.Group
	crd, err := m.crds().Get(ctx, name, metav1.GetOptions{})
	if ignoreNotFound(err) != nil {
		return err
	}
	if err == nil && isConditionTrue(crd, resource.StorageMigrating) {
		if err := m.setMigrating(ctx, name, "False", "StorageVersionMigrationDeleted", "the StorageVersionMigration was deleted before its end"); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pending[of]) == 0 {
		delete(m.pending, of)
	}
	return nil
}

func resourceOf(svm *unstructured.Unstructured) (r schema.GroupResource) {
	r.Group, _, _ = unstructured.NestedString(svm.Object, "spec", "resource", "group")
	r.Resource, _, _ = unstructured.NestedString(svm.Object, "spec", "resource", "resource")
	return r
}

// finished says that there is no more to do, whether it came to its end or not.
func finished(svm *unstructured.Unstructured) bool {
	return svm.GetDeletionTimestamp() != nil || isConditionTrue(svm, "Succeeded") || isConditionTrue(svm, "Failed")
}

func (m *migrationController) crds() dynamic.ResourceInterface {
	return m.clients.dynamic.Resource(crdKind.WithVersion("v1").GroupVersion().WithResource("customresourcedefinitions"))
}
