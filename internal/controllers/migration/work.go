package migration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"golang.org/x/sync/errgroup"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
	"github.com/trellis-k8s/trellis/internal/controllers/report"
	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	migrationPage    = 500
	migrationWorkers = 4 // workers of one migration

	// continueAnnotation holds the continue token of the next page. The token is valid only if the CRD is in the state
	// that stateAnnotation contains.
	continueAnnotation = "trellis.dev/migration-continue"
	stateAnnotation    = "trellis.dev/migration-of"
)

var errCRDChanged = errors.New("the CRD has changed: the migration starts over")

// migration is a running StorageVersionMigration.
type migration struct {
	*Controller
	object      *unstructured.Unstructured
	resource    schema.GroupVersionResource
	crd         string // name of the CRD; "" means a built-in kind
	crdState    string // state of the CRD at the start of the migration
	storage     string // storage version of the CRD
	usesWebhook bool   // the CRD has a conversion webhook
	done        int64  // number of processed objects
	token       string // continue token of the next page
	remaining   int64  // number of objects after this page
}

func (g *migration) run(ctx context.Context) error {
	problem, err := g.resolve(ctx)
	if err != nil {
		return err
	}
	if problem != "" {
		return g.fail(ctx, problem)
	}
	if err = g.start(ctx); err == nil {
		err = g.writePages(ctx)
	}
	if err == nil {
		err = g.finish(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	if isPermanent(err) {
		return g.fail(ctx, err.Error())
	}
	message := "will try again: " + report.Truncate(err.Error())
	if stateErr := g.setState(ctx, "Running", "StorageVersionMigrationInProgress", message); stateErr != nil {
		return stateErr
	}
	return err
}

// isPermanent reports whether a retry would get the same error. The error of an unreachable webhook, for example, is
// not permanent.
func isPermanent(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest, metav1.StatusReasonForbidden,
		metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonRequestEntityTooLarge:
		return true
	}
	return false
}

// resolve determines the version at which the resource is written, and the state of its CRD. It also returns a problem
// that no retry can resolve, or "".
func (g *migration) resolve(ctx context.Context) (problem string, err error) {
	name := g.resource.Resource + "." + g.resource.Group
	crd, err := g.Dynamic.Resource(crds).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return g.resolveBuiltin()
	}
	if err != nil {
		return "", err
	}
	g.crd = name
	g.resource.Version, g.storage = versionsOf(crd)
	if g.resource.Version == "" {
		return "no version of " + name + " is served", nil
	}
	strategy, _, _ := unstructured.NestedString(crd.Object, "spec", "conversion", "strategy")
	g.crdState, g.usesWebhook = crdStateOf(crd), strategy == "Webhook"
	return "", nil
}

// crdStateOf identifies a state of a CRD's spec. A deleted and recreated CRD has another state.
func crdStateOf(crd *unstructured.Unstructured) string {
	return string(crd.GetUID()) + "/" + strconv.FormatInt(crd.GetGeneration(), 10)
}

// versionsOf returns the version at which a CRD's objects are written, and the storage version. Objects are written at
// the storage version if it is served, or else at any served version. The result at is "" if no version is served.
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

func (g *migration) resolveBuiltin() (problem string, err error) {
	lists, err := discovery.ServerPreferredResources(g.Discovery)
	for _, list := range lists {
		gv, _ := schema.ParseGroupVersion(list.GroupVersion)
		for _, r := range list.APIResources {
			if gv.Group == g.resource.Group && r.Name == g.resource.Resource && slices.Contains(r.Verbs, "patch") {
				g.resource.Version = gv.Version
				return "", nil
			}
		}
	}
	if failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err); ok { // ignore other groups
		err = nil
		for gv, cause := range failed {
			if gv.Group == g.resource.Group {
				err = cause
			}
		}
	}
	if err != nil {
		return "", err
	}
	return "there is no resource " + g.resource.GroupResource().String(), nil
}

// start resumes the migration from its annotations, unless the CRD has changed since. It sets the conditions of the
// CRD and of the StorageVersionMigration.
func (g *migration) start(ctx context.Context) error {
	notes := g.object.GetAnnotations()
	if notes[stateAnnotation] == g.crdState {
		g.token = notes[continueAnnotation]
		if g.token != "" {
			_, _ = fmt.Sscanf(notes[resource.MigrationProgressAnnotation], "%d/", &g.done)
		}
	}
	if g.crd != "" {
		err := g.setMigrating(ctx, g.crd, "True", "StorageVersionMigrationInProgress",
			"objects are written at the storage version "+g.storage)
		if err != nil {
			return err
		}
	}
	if report.IsTrue(g.object, "Running") {
		return nil // keep the message of the condition until there is progress
	}
	return g.setState(ctx, "Running", "StorageVersionMigrationInProgress", "")
}

// writePages writes all objects, page by page.
func (g *migration) writePages(ctx context.Context) error {
	meta, full := g.Metadata.Resource(g.resource), g.Dynamic.Resource(g.resource)
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
		if g.usesWebhook {
			g.preconvert(ctx, options)
		}
		if err := g.writePage(ctx, page.Items, full); err != nil {
			return err
		}
		g.done, g.token, g.remaining = g.done+int64(len(page.Items)), page.Continue, 0
		if page.RemainingItemCount != nil {
			g.remaining = *page.RemainingItemCount
		}
		if err := g.saveProgress(ctx); err != nil {
			return err
		}
		if err := g.setState(ctx, "Running", "StorageVersionMigrationInProgress", ""); err != nil {
			return err
		}
		if g.token == "" {
			return nil
		}
	}
}

// preconvert lists a page as a Table at the version at which its objects will be written. The server then converts
// the whole page with one webhook call and caches the results. Errors are ignored, because the writes report them.
func (g *migration) preconvert(ctx context.Context, options metav1.ListOptions) {
	path := []string{"/apis", g.resource.Group, g.resource.Version, g.resource.Resource}
	_ = g.Discovery.RESTClient().Get().AbsPath(path...).
		SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").
		Param("includeObject", string(metav1.IncludeNone)).
		Param("limit", strconv.FormatInt(options.Limit, 10)).Param("continue", options.Continue).Do(ctx).Error()
}

// writePage writes the objects of a page without changing them.
func (g *migration) writePage(
	ctx context.Context, items []metav1.PartialObjectMetadata, client dynamic.NamespaceableResourceInterface,
) error {
	writes, writing := errgroup.WithContext(ctx) // writing is canceled after the first error
	writes.SetLimit(migrationWorkers)
	for i := range items {
		if g.pace.Wait(writing) != nil {
			break
		}
		writes.Go(func() error { return g.writeOne(writing, &items[i], client.Namespace(items[i].Namespace)) })
	}
	return cmp.Or(writes.Wait(), ctx.Err())
}

// writeOne writes an object without changing it, so that the server stores it at the storage version. If another
// client has written or deleted the object, nothing needs to be done.
func (g *migration) writeOne(
	ctx context.Context, o *metav1.PartialObjectMetadata, client dynamic.ResourceInterface,
) error {
	metadata := map[string]any{"uid": o.UID, "resourceVersion": o.ResourceVersion}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	options := metav1.PatchOptions{FieldManager: fieldManager}
	_, err = client.Patch(ctx, o.Name, types.MergePatchType, patch, options)
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, err)
}

// finish removes the versions at which no object is stored from status.storedVersions. It returns errCRDChanged if the
// CRD has changed during the migration.
func (g *migration) finish(ctx context.Context) error {
	if g.crd == "" {
		return g.setState(ctx, "Succeeded", "StorageVersionMigrationSucceeded", "")
	}
	err := updateStatus(ctx, g.Dynamic.Resource(crds), g.crd, func(crd *unstructured.Unstructured) (bool, error) {
		if g.crdState != crdStateOf(crd) {
			return false, errCRDChanged
		}
		report.SetCondition(crd, resource.StorageMigrating, "False", "StorageVersionMigrationSucceeded",
			"all objects are stored at version "+g.storage)
		return true, unstructured.SetNestedStringSlice(crd.Object, []string{g.storage}, "status", "storedVersions")
	})
	if err != nil {
		return err
	}
	return g.setFinalState(ctx, "Succeeded", "StorageVersionMigrationSucceeded", "")
}

// setMigrating sets the condition StorageMigrating of a CRD, if the CRD exists.
func (m *Controller) setMigrating(ctx context.Context, name, status, reason, message string) error {
	set := func(crd *unstructured.Unstructured) (bool, error) {
		return report.SetCondition(crd, resource.StorageMigrating, status, reason, message), nil
	}
	return informer.IgnoreNotFound(updateStatus(ctx, m.Dynamic.Resource(crds), name, set))
}

func (g *migration) fail(ctx context.Context, message string) error {
	message = report.Truncate(message)
	if g.crd != "" {
		err := g.setMigrating(ctx, g.crd, "False", "StorageVersionMigrationFailed", message)
		if err != nil {
			return err
		}
	}
	return g.setFinalState(ctx, "Failed", "StorageVersionMigrationFailed", message)
}

// setFinalState sets the last condition and deletes older automatic migrations.
func (g *migration) setFinalState(ctx context.Context, kind, reason, message string) error {
	if err := g.setState(ctx, kind, reason, message); err != nil {
		return err
	}
	return g.deleteOtherAutomatic(ctx)
}

// setState sets the condition kind to True. If kind is not Running, it also sets the condition Running to False.
func (g *migration) setState(ctx context.Context, kind, reason, message string) error {
	set := func(fresh *unstructured.Unstructured) (bool, error) {
		if rv, _, _ := unstructured.NestedString(fresh.Object, "status", "resourceVersion"); rv == "" {
			_ = unstructured.SetNestedField(fresh.Object, fresh.GetResourceVersion(), "status", "resourceVersion")
		}
		if kind != "Running" && report.IsTrue(fresh, "Running") {
			report.SetCondition(fresh, "Running", "False", reason, message)
		}
		return report.SetCondition(fresh, kind, "True", reason, message), nil
	}
	return informer.IgnoreNotFound(updateStatus(ctx, g.Dynamic.Resource(migrations), g.object.GetName(), set))
}

// updateStatus writes the status of an object if the function change reports that it has changed the object. It starts
// over after a conflict.
func updateStatus(
	ctx context.Context, client dynamic.ResourceInterface, name string,
	change func(*unstructured.Unstructured) (bool, error),
) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		o, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if changed, err := change(o); err != nil || !changed {
			return err
		}
		_, err = client.UpdateStatus(ctx, o, metav1.UpdateOptions{})
		return err
	})
}

// saveProgress stores the progress in annotations.
func (g *migration) saveProgress(ctx context.Context) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		resource.MigrationProgressAnnotation: fmt.Sprintf("%d/%d", g.done, g.done+g.remaining),
		continueAnnotation:                   g.token,
		stateAnnotation:                      g.crdState,
	}}})
	if err != nil {
		return err
	}
	client := g.Dynamic.Resource(migrations)
	_, err = client.Patch(ctx, g.object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
