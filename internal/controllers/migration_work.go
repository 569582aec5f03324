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
	ofAnnotation       = "trellis.dev/migration-of"
)

var errStartOver = errors.New("the CRD has changed: the migration starts over")

// migration is one StorageVersionMigration at work.
type migration struct {
	*migrations
	object    *unstructured.Unstructured
	resource  schema.GroupVersionResource
	crd       string // the name of its CRD, "" for a built-in kind
	of        string // the state of the CRD that it holds for
	storage   string // the CRD's storage version
	remote    bool   // a webhook converts
	done      int64
	token     string
	remaining int64
}

func (g *migration) run(ctx context.Context) error {
	err := g.find(ctx)
	var wrong *impossibleError
	if errors.As(err, &wrong) {
		return g.fail(ctx, err)
	}
	if err != nil {
		return err
	}
	if err = g.begin(ctx); err == nil {
		err = g.pages(ctx)
	}
	if err == nil {
		err = g.finish(ctx)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	if refused(err) {
		return g.fail(ctx, err)
	}
	if told := g.state(ctx, "Running", "StorageVersionMigrationInProgress", "will try again: "+clip(err.Error())); told != nil {
		return told
	}
	return err
}

// refused is true of an answer that would be the same later. That of a webhook which cannot be reached is another.
func refused(err error) bool {
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest, metav1.StatusReasonForbidden, metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonRequestEntityTooLarge:
		return true
	}
	return false
}

// impossibleError is one that no later try will get over.
type impossibleError struct{ problem string }

func (e *impossibleError) Error() string { return e.problem }

// find looks up the resource, and what there is of the work already.
func (g *migration) find(ctx context.Context) error {
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
	strategy, _, _ := unstructured.NestedString(crd.Object, "spec", "conversion", "strategy")
	g.of, g.remote = stateOf(crd), strategy == "Webhook"
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
	return &impossibleError{"there is no resource " + g.resource.GroupResource().String()}
}

// begin takes up the work where it was left, unless the CRD has changed since.
func (g *migration) begin(ctx context.Context) error {
	notes := g.object.GetAnnotations()
	if notes[ofAnnotation] == g.of {
		g.token = notes[continueAnnotation]
		if g.token != "" {
			_, _ = fmt.Sscanf(notes[resource.MigrationProgressAnnotation], "%d/", &g.done)
		}
	}
	if g.crd != "" {
		err := g.mark(ctx, g.crd, "True", "StorageVersionMigrationInProgress", "objects are written at the storage version "+g.storage)
		if err != nil {
			return err
		}
	}
	if isConditionTrue(g.object, "Running") {
		return nil // what it says holds until there is progress
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
		if g.remote {
			g.warm(ctx, options)
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
		if err := g.state(ctx, "Running", "StorageVersionMigrationInProgress", ""); err != nil {
			return err
		}
		if g.token == "" {
			return nil
		}
	}
}

// warm asks for a page's names at the version that it is going to be written at, so that a webhook gets the objects
// together, not one by one. What cannot be converted will tell by itself.
func (g *migration) warm(ctx context.Context, options metav1.ListOptions) {
	_ = g.clients.discovery.RESTClient().Get().AbsPath("/apis", g.resource.Group, g.resource.Version, g.resource.Resource).
		SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").Param("includeObject", string(metav1.IncludeNone)).
		Param("limit", strconv.FormatInt(options.Limit, 10)).Param("continue", options.Continue).Do(ctx).Error()
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
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
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
		setCondition(crd, resource.StorageMigrating, "False", "StorageVersionMigrationSucceeded", "all objects are stored at version "+g.storage)
		_, err = g.crds().UpdateStatus(ctx, crd, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return g.end(ctx, "Succeeded", "StorageVersionMigrationSucceeded", "")
}

// mark sets the condition of a CRD, if there is one of that name.
func (m *migrations) mark(ctx context.Context, name, status, reason, message string) error {
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
		if err := g.mark(ctx, g.crd, "False", "StorageVersionMigrationFailed", clip(why.Error())); err != nil {
			return err
		}
	}
	return g.end(ctx, "Failed", "StorageVersionMigrationFailed", clip(why.Error()))
}

// end is the last state.
func (g *migration) end(ctx context.Context, kind, reason, message string) error {
	if err := g.state(ctx, kind, reason, message); err != nil {
		return err
	}
	return g.forgetOthers(ctx)
}

// state makes kind the one condition that is True.
func (g *migration) state(ctx context.Context, kind, reason, message string) error {
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

// note keeps how far the work is.
func (g *migration) note(ctx context.Context) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		resource.MigrationProgressAnnotation: fmt.Sprintf("%d/%d", g.done, g.done+g.remaining),
		continueAnnotation:                   g.token,
		ofAnnotation:                         g.of,
	}}})
	if err != nil {
		return err
	}
	client := g.clients.dynamic.Resource(migrationResources)
	_, err = client.Patch(ctx, g.object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
