package controllers

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
	"k8s.io/client-go/util/retry"

	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	migrationPage    = 500
	migrationWorkers = 4 // of one migration

	// continueAnnotation is where the next page begins; it holds for the state of the CRD in ofAnnotation.
	continueAnnotation = "trellis.dev/migration-continue"
	stateAnnotation    = "trellis.dev/migration-of"
)

var errCRDChanged = errors.New("the CRD has changed: the migration starts over")

// migration is one StorageVersionMigration at work.
type migration struct {
	*migrationController
	object      *unstructured.Unstructured
	resource    schema.GroupVersionResource
	crd         string // the name of its CRD, "" for a built-in kind
	crdState    string // the state of the CRD that it holds for
	storage     string // the CRD's storage version
	usesWebhook bool   // a webhook converts
	done        int64
	token       string
	remaining   int64
}

func (g *migration) run(ctx context.Context) error {
	err := g.resolve(ctx)
	var wrong *permanentError
	if errors.As(err, &wrong) {
		return g.fail(ctx, err)
	}
	if err != nil {
		return err
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
		return g.fail(ctx, err)
	}
	if told := g.setState(ctx, "Running", "StorageVersionMigrationInProgress", "will try again: "+truncate(err.Error())); told != nil {
		return told
	}
	return err
}

// isPermanent is true of an answer that would be the same later. That of a webhook which cannot be reached is another.
func isPermanent(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest, metav1.StatusReasonForbidden, metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonRequestEntityTooLarge:
		return true
	}
	return false
}

// permanentError is one that no later try will get over.
type permanentError struct{ problem string }

func (e *permanentError) Error() string { return e.problem }

// resolve looks up the resource, and what there is of the work already.
func (g *migration) resolve(ctx context.Context) error {
	name := g.resource.Resource + "." + g.resource.Group
	crd, err := g.crds().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return g.resolveBuiltin()
	}
	if err != nil {
		return err
	}
	g.crd = name
	g.resource.Version, g.storage = versionsOf(crd)
	if g.resource.Version == "" {
		return &permanentError{"no version of " + name + " is served"}
	}
	strategy, _, _ := unstructured.NestedString(crd.Object, "spec", "conversion", "strategy")
	g.crdState, g.usesWebhook = crdStateOf(crd), strategy == "Webhook"
	return nil
}

// crdStateOf names a state of a CRD's spec: that of one which is created again is another.
func crdStateOf(crd *unstructured.Unstructured) string {
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

func (g *migration) resolveBuiltin() error {
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
	if failed, ok := discovery.GroupDiscoveryFailedErrorGroups(err); ok { // of others, which may be away for ever
		err = nil
		for gv, why := range failed {
			if gv.Group == g.resource.Group {
				err = why
			}
		}
	}
	if err != nil {
		return err
	}
	return &permanentError{"there is no resource " + g.resource.GroupResource().String()}
}

// start takes up the work where it was left, unless the CRD has changed since.
func (g *migration) start(ctx context.Context) error {
	notes := g.object.GetAnnotations()
	if notes[stateAnnotation] == g.crdState {
		g.token = notes[continueAnnotation]
		if g.token != "" {
			_, _ = fmt.Sscanf(notes[resource.MigrationProgressAnnotation], "%d/", &g.done)
		}
	}
	if g.crd != "" {
		err := g.setMigrating(ctx, g.crd, "True", "StorageVersionMigrationInProgress", "objects are written at the storage version "+g.storage)
		if err != nil {
			return err
		}
	}
	if isConditionTrue(g.object, "Running") {
		return nil // what it says holds until there is progress
	}
	return g.setState(ctx, "Running", "StorageVersionMigrationInProgress", "")
}

// writePages writes all objects, page by page.
func (g *migration) writePages(ctx context.Context) error {
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

// preconvert asks for a page's names at the version that it is going to be written at, so that a webhook gets the
// objects together, not one by one. What cannot be converted will tell by itself.
func (g *migration) preconvert(ctx context.Context, options metav1.ListOptions) {
	_ = g.clients.discovery.RESTClient().Get().AbsPath("/apis", g.resource.Group, g.resource.Version, g.resource.Resource).
		SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").Param("includeObject", string(metav1.IncludeNone)).
		Param("limit", strconv.FormatInt(options.Limit, 10)).Param("continue", options.Continue).Do(ctx).Error()
}

// writePage writes some objects as they are.
func (g *migration) writePage(ctx context.Context, items []metav1.PartialObjectMetadata, client dynamic.NamespaceableResourceInterface) error {
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

// writeOne writes an object as it is, which moves it. One that has been written by somebody else, or is gone, needs
// nothing.
func (g *migration) writeOne(ctx context.Context, o *metav1.PartialObjectMetadata, client dynamic.ResourceInterface) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.UID, "resourceVersion": o.ResourceVersion}})
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, o.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: migrationFieldManager})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, err)
}

// finish takes the versions out of status.storedVersions at which nothing is stored any longer.
func (g *migration) finish(ctx context.Context) error {
	if g.crd == "" {
		return g.setState(ctx, "Succeeded", "StorageVersionMigrationSucceeded", "")
	}
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		crd, err := g.crds().Get(ctx, g.crd, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if g.crdState != crdStateOf(crd) {
			return errCRDChanged
		}
		if err := unstructured.SetNestedStringSlice(crd.Object, []string{g.storage}, "status", "storedVersions"); err != nil {
			return err
		}
		setCondition(crd, resource.StorageMigrating, "False", "StorageVersionMigrationSucceeded", "all objects are stored at version "+g.storage)
		_, err = g.crds().UpdateStatus(ctx, crd, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return g.setFinalState(ctx, "Succeeded", "StorageVersionMigrationSucceeded", "")
}

// setMigrating sets the condition of a CRD, if there is one of that name.
func (m *migrationController) setMigrating(ctx context.Context, name, status, reason, message string) error {
	return ignoreNotFound(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		crd, err := m.crds().Get(ctx, name, metav1.GetOptions{})
		if err != nil || !setCondition(crd, resource.StorageMigrating, status, reason, message) {
			return err
		}
		_, err = m.crds().UpdateStatus(ctx, crd, metav1.UpdateOptions{})
		return err
	}))
}

func (g *migration) fail(ctx context.Context, why error) error {
	if g.crd != "" {
		if err := g.setMigrating(ctx, g.crd, "False", "StorageVersionMigrationFailed", truncate(why.Error())); err != nil {
			return err
		}
	}
	return g.setFinalState(ctx, "Failed", "StorageVersionMigrationFailed", truncate(why.Error()))
}

// setFinalState is the last state.
func (g *migration) setFinalState(ctx context.Context, kind, reason, message string) error {
	if err := g.setState(ctx, kind, reason, message); err != nil {
		return err
	}
	return g.deleteOtherAutomatic(ctx)
}

// setState makes kind the one condition that is True.
func (g *migration) setState(ctx context.Context, kind, reason, message string) error {
	client := g.clients.dynamic.Resource(migrationResources)
	return ignoreNotFound(retry.RetryOnConflict(retry.DefaultRetry, func() error {
		fresh, err := client.Get(ctx, g.object.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
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
		_, err = client.UpdateStatus(ctx, fresh, metav1.UpdateOptions{})
		return err
	}))
}

// saveProgress keeps how far the work is.
func (g *migration) saveProgress(ctx context.Context) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		resource.MigrationProgressAnnotation: fmt.Sprintf("%d/%d", g.done, g.done+g.remaining),
		continueAnnotation:                   g.token,
		stateAnnotation:                      g.crdState,
	}}})
	if err != nil {
		return err
	}
	client := g.clients.dynamic.Resource(migrationResources)
	_, err = client.Patch(ctx, g.object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
