package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/flowcontrol"
)

// migrations does what StorageVersionMigrations ask for, one after the other (KEP-4192): it writes every object
// of a resource once more as it is, which stores it at the storage version of now, and then takes the other versions out
// of the CRD's status.storedVersions.
//
// How far it is stands in annotations of the StorageVersionMigration, so that another process goes on where one has
// ended. An object that somebody else writes meanwhile needs no more.
type migrations struct {
	clients   *clients
	automatic bool
	asked     queue[string] // names of StorageVersionMigrations
	changed   queue[string] // names of CRDs, if automatic
	pace      flowcontrol.RateLimiter
}

const (
	migrator = "storage-version-migrator-controller" // upstream's field manager

	migrationPage    = 500
	migrationWorkers = 4
	// migrationRate is how many objects are written in a second at most, so that clients have most of the server.
	migrationRate = 1000

	// progressAnnotation says how many objects have been looked at, of how many ("1500/5000").
	progressAnnotation = "trellis.dev/migration-progress"
	// continueAnnotation is where the next page begins; it holds for the state of the CRD in ofAnnotation.
	continueAnnotation = "trellis.dev/migration-continue"
	ofAnnotation       = "trellis.dev/migration-of"
)

var (
	migrationKind      = schema.GroupKind{Group: "storagemigration.k8s.io", Kind: "StorageVersionMigration"}
	migrationResources = schema.GroupVersionResource{Group: "storagemigration.k8s.io", Version: "v1", Resource: "storageversionmigrations"}
	errStartOver       = errors.New("the CRD has changed: the migration starts over")
)

func newMigrations(c *clients, automatic bool) *migrations {
	return &migrations{
		clients: c, automatic: automatic, asked: newQueue[string]("migrate"), changed: newQueue[string]("migrate by itself"),
		pace: flowcontrol.NewTokenBucketRateLimiter(migrationRate, migrationPage),
	}
}

func (m *migrations) run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { m.asked.work(ctx, 1, m.migrate) })
	running.Go(func() { m.changed.work(ctx, 1, m.ask) })
	running.Wait()
}

func (m *migrations) observe(ch change) {
	for _, o := range ch.objects() {
		switch ch.kind.groupKind() {
		case migrationKind:
			m.asked.Add(o.Name)
		case crdKind:
			if m.automatic && !ch.deleted {
				m.changed.AddAfter(o.Name, gather)
			}
		}
	}
}

// migration is one StorageVersionMigration at work.
type migration struct {
	*migrations
	object    *unstructured.Unstructured
	resource  schema.GroupVersionResource
	crd       string // the name of its CRD, "" for a built-in kind
	of        string // the state of the CRD that it holds for
	storage   string // the CRD's storage version
	done      int64
	token     string
	remaining int64
}

// migrate does one StorageVersionMigration, or what is left of it. An error brings it back.
func (m *migrations) migrate(ctx context.Context, name string) error {
	svm, err := m.clients.dynamic.Resource(migrationResources).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	if svm.GetDeletionTimestamp() != nil || isConditionTrue(svm, "Succeeded") || isConditionTrue(svm, "Failed") {
		return nil
	}
	g := &migration{migrations: m, object: svm}
	if err := g.find(ctx); err != nil {
		var wrong *impossibleError
		if errors.As(err, &wrong) {
			return g.fail(ctx, err)
		}
		return err
	}
	if err := g.begin(ctx); err != nil {
		return err
	}
	err = g.pages(ctx)
	if err == nil {
		err = g.finish(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	if apierrors.IsInvalid(err) {
		return g.fail(ctx, err)
	}
	if told := g.state(ctx, "Running", "StorageVersionMigrationInProgress", "will try again: "+clip(err.Error())); told != nil {
		return told
	}
	return err
}

func clip(message string) string { return message[:min(len(message), maxMessage)] }

// impossibleError is one that no later try will get over.
type impossibleError struct{ problem string }

func (e *impossibleError) Error() string { return e.problem }

// find looks up the resource, and what there is of the work already.
func (g *migration) find(ctx context.Context) error {
	g.resource.Group, _, _ = unstructured.NestedString(g.object.Object, "spec", "resource", "group")
	g.resource.Resource, _, _ = unstructured.NestedString(g.object.Object, "spec", "resource", "resource")
	name := g.resource.Resource + "." + g.resource.Group
	crd, err := g.crds().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return g.findBuiltin()
	}
	if err != nil {
		return err
	}
	g.crd = name
	g.resource.Version, g.storage = versionsOf(crd)
	if g.resource.Version == "" {
		return &impossibleError{"no version of " + name + " is served"}
	}
	g.of = stateOf(crd)
	return nil
}

// stateOf names a state of a CRD's spec: that of one which is created again is another.
func stateOf(crd *unstructured.Unstructured) string {
	return string(crd.GetUID()) + "/" + strconv.FormatInt(crd.GetGeneration(), 10)
}

// versionsOf returns the version at which a CRD's objects are best written: the storage version if it is
// served, else any that is; and the storage version.
func versionsOf(crd *unstructured.Unstructured) (at, storage string) {
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		version, _ := v.(map[string]any)
		name, _ := version["name"].(string)
		if version["storage"] == true {
			storage = name
		}
		if version["served"] == true && (at == "" || version["storage"] == true) {
			at = name
		}
	}
	return at, storage
}

func (g *migration) findBuiltin() error {
	lists, err := discovery.ServerPreferredResources(g.clients.discovery)
	for _, list := range lists {
		gv, _ := schema.ParseGroupVersion(list.GroupVersion)
		for _, r := range list.APIResources {
			if gv.Group == g.resource.Group && r.Name == g.resource.Resource && slices.Contains(r.Verbs, "patch") {
				g.resource.Version = gv.Version
				return nil
			}
		}
	}
	if err != nil {
		return err
	}
	return &impossibleError{"there is no resource " + g.resource.GroupResource().String()}
}

// begin takes up the work where it was left, unless the CRD has changed since.
func (g *migration) begin(ctx context.Context) error {
	notes := g.object.GetAnnotations()
	if notes[ofAnnotation] == g.of {
		g.token = notes[continueAnnotation]
		if g.token != "" {
			_, _ = fmt.Sscanf(notes[progressAnnotation], "%d/", &g.done)
		}
	}
	if err := g.mark(ctx, "True", "StorageVersionMigrationInProgress", "objects are written at the storage version "+g.storage); err != nil {
		return err
	}
	return g.state(ctx, "Running", "StorageVersionMigrationInProgress", "")
}

// pages writes all objects, page by page.
func (g *migration) pages(ctx context.Context) error {
	meta, full := g.clients.metadata.Resource(g.resource), g.clients.dynamic.Resource(g.resource)
	for {
		options := metav1.ListOptions{Limit: migrationPage, Continue: g.token}
		page, err := meta.List(ctx, options)
		if apierrors.IsResourceExpired(err) {
			g.token, g.done = "", 0
			continue
		}
		if err != nil {
			return err
		}
		if g.crd != "" { // so that a webhook gets them together; what cannot be converted will tell by itself
			_, _ = full.List(ctx, options)
		}
		if err := g.write(ctx, page.Items, full); err != nil {
			return err
		}
		g.done, g.token, g.remaining = g.done+int64(len(page.Items)), page.Continue, 0
		if page.RemainingItemCount != nil {
			g.remaining = *page.RemainingItemCount
		}
		if err := g.note(ctx); err != nil {
			return err
		}
		if g.token == "" {
			return nil
		}
	}
}

// write writes some objects as they are.
func (g *migration) write(ctx context.Context, items []metav1.PartialObjectMetadata, client dynamic.NamespaceableResourceInterface) error {
	work := make(chan *metav1.PartialObjectMetadata)
	errs := make([]error, migrationWorkers)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	for i := range errs {
		running.Go(func() {
			for o := range work {
				if errs[i] == nil {
					if errs[i] = g.writeOne(ctx, o, client.Namespace(o.Namespace)); errs[i] != nil {
						cancel()
					}
				}
			}
		})
	}
	for i := range items {
		if g.pace.Wait(ctx) != nil {
			break
		}
		work <- &items[i]
	}
	close(work)
	running.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil && !errors.Is(err, context.Canceled) }); i >= 0 {
		return errs[i]
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// writeOne writes an object as it is, which moves it. One that has been written by somebody else, or is gone, needs nothing.
func (g *migration) writeOne(ctx context.Context, o *metav1.PartialObjectMetadata, client dynamic.ResourceInterface) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.UID, "resourceVersion": o.ResourceVersion}})
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, o.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: migrator})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, err)
}

// finish takes the versions out of status.storedVersions at which nothing is stored any longer.
func (g *migration) finish(ctx context.Context) error {
	if g.crd == "" {
		return g.state(ctx, "Succeeded", "StorageVersionMigrationSucceeded", "")
	}
	crd, err := g.crds().Get(ctx, g.crd, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if g.of != stateOf(crd) {
		return errStartOver
	}
	if err := unstructured.SetNestedStringSlice(crd.Object, []string{g.storage}, "status", "storedVersions"); err != nil {
		return err
	}
	setCondition(crd, storageMigrating, "False", "StorageVersionMigrationSucceeded", "all objects are stored at version "+g.storage)
	if _, err := g.crds().UpdateStatus(ctx, crd, metav1.UpdateOptions{}); err != nil {
		return err
	}
	return g.state(ctx, "Succeeded", "StorageVersionMigrationSucceeded", "")
}

// storageMigrating is the condition of a CRD whose objects are being migrated.
const storageMigrating = "StorageMigrating"

// mark sets the CRD's condition.
func (g *migration) mark(ctx context.Context, status, reason, message string) error {
	if g.crd == "" {
		return nil
	}
	crd, err := g.crds().Get(ctx, g.crd, metav1.GetOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	if !setCondition(crd, storageMigrating, status, reason, message) {
		return nil
	}
	_, err = g.crds().UpdateStatus(ctx, crd, metav1.UpdateOptions{})
	return err
}

func (g *migration) fail(ctx context.Context, why error) error {
	if err := g.mark(ctx, "False", "StorageVersionMigrationFailed", clip(why.Error())); err != nil {
		return err
	}
	return g.state(ctx, "Failed", "StorageVersionMigrationFailed", clip(why.Error()))
}

// state makes kind the one condition that is True.
func (g *migration) state(ctx context.Context, kind, reason, message string) error {
	client := g.clients.dynamic.Resource(migrationResources)
	fresh, err := client.Get(ctx, g.object.GetName(), metav1.GetOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	if rv, _, _ := unstructured.NestedString(fresh.Object, "status", "resourceVersion"); rv == "" {
		_ = unstructured.SetNestedField(fresh.Object, fresh.GetResourceVersion(), "status", "resourceVersion")
	}
	if kind != "Running" && isConditionTrue(fresh, "Running") {
		setCondition(fresh, "Running", "False", reason, message)
	}
	if !setCondition(fresh, kind, "True", reason, message) {
		return nil
	}
	g.object, err = client.UpdateStatus(ctx, fresh, metav1.UpdateOptions{})
	return ignoreNotFound(err)
}

// note keeps how far the work is.
func (g *migration) note(ctx context.Context) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		progressAnnotation: fmt.Sprintf("%d/%d", g.done, g.done+g.remaining),
		continueAnnotation: g.token,
		ofAnnotation:       g.of,
	}}})
	if err != nil {
		return err
	}
	client := g.clients.dynamic.Resource(migrationResources)
	_, err = client.Patch(ctx, g.object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func (m *migrations) crds() dynamic.ResourceInterface {
	return m.clients.dynamic.Resource(crdKind.WithVersion("v1").GroupVersion().WithResource("customresourcedefinitions"))
}

// ask creates the StorageVersionMigration of a CRD that has objects at other versions than the storage version. There is
// one for each generation of the CRD: one that has failed is not tried for ever.
func (m *migrations) ask(ctx context.Context, name string) error {
	crd, err := m.crds().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return ignoreNotFound(err)
	}
	_, storage := versionsOf(crd)
	stored, _, _ := unstructured.NestedStringSlice(crd.Object, "status", "storedVersions")
	if crd.GetDeletionTimestamp() != nil || len(stored) == 0 || len(stored) == 1 && stored[0] == storage {
		return nil
	}
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	svm := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": migrationResources.GroupVersion().String(), "kind": migrationKind.Kind,
		"metadata": map[string]any{"name": fmt.Sprintf("%s-%.8s-%d", name, crd.GetUID(), crd.GetGeneration())},
		"spec":     map[string]any{"resource": map[string]any{"group": group, "resource": plural}},
	}}
	_, err = m.clients.dynamic.Resource(migrationResources).Create(ctx, svm, metav1.CreateOptions{FieldManager: migrator})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
