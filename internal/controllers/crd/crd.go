// Package crd finishes the deletion of CRDs and maintains their conditions. Upstream's finalizer is not used, because
// it caches all CRDs and polls for the end of the deletion of their objects.
package crd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
	"github.com/trellis-k8s/trellis/internal/controllers/purge"
	"github.com/trellis-k8s/trellis/internal/controllers/report"
)

// Controller finishes the deletion of CRDs: it deletes their objects and then removes the finalizer. When the names
// of a CRD become free, it makes the server check the names of other CRDs again.
type Controller struct {
	crds        dynamic.ResourceInterface
	metadata    metadata.Interface
	rest        rest.Interface
	deletions   informer.Queue[string]
	nameRetries informer.Queue[string] // by group

	terminating sync.Map // names of CRDs that wait for the deletion of their objects

	mu     sync.Mutex
	groups map[string]map[string]int64 // generations of the CRDs, by group and name
}

var crds = apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions")

// errRemaining reports that objects of the CRD remain.
var errRemaining = errors.New("dependents remain")

const cleanupFinalizer = "customresourcecleanup.apiextensions.k8s.io"

// New returns a Controller. It reads whole CRDs with the client r only to decode parts of them.
func New(d dynamic.Interface, m metadata.Interface, r rest.Interface) *Controller {
	return &Controller{
		crds: d.Resource(crds), metadata: m, rest: r, deletions: informer.NewQueue[string]("finalize CRD"),
		nameRetries: informer.NewQueue[string]("retry CRD names"), groups: map[string]map[string]int64{},
	}
}

// Run finishes deletions until ctx is done.
func (d *Controller) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() {
		d.deletions.Work(ctx, 4, func(ctx context.Context, name string) error {
			err := d.finishDeletion(ctx, name)
			if err == nil {
				d.terminating.Delete(name)
			}
			return err
		})
	})
	running.Go(func() { d.nameRetries.Work(ctx, 1, d.retryNames) })
	running.Wait()
}

// Observe queues the CRDs and groups that a change concerns.
func (d *Controller) Observe(ch informer.Change) {
	if ch.Kind.GroupKind() != informer.CRDKind {
		name := ch.Kind.Resource + "." + ch.Kind.Group
		if _, terminating := d.terminating.Load(name); terminating && ch.Deleted {
			d.deletions.AddAfter(name, informer.BatchDelay)
		}
		return
	}
	if ch.Object == nil {
		d.relist(ch.Listed)
	}
	for _, m := range ch.Objects() {
		if !ch.Deleted && m.DeletionTimestamp != nil {
			d.deletions.Add(m.Name)
		}
	}
	if ch.Object != nil && d.recordCRD(ch.Object, ch.Deleted) {
		d.nameRetries.AddAfter(groupOf(ch.Object), informer.BatchDelay)
	}
}

func groupOf(crd *metav1.PartialObjectMetadata) string {
	_, group, _ := strings.Cut(crd.Name, ".")
	return group
}

// relist replaces the recorded CRDs. In each group with more than one CRD it triggers a new check of the names,
// because names may have become free without an event.
func (d *Controller) relist(crds []*metav1.PartialObjectMetadata) {
	d.mu.Lock()
	clear(d.groups)
	d.mu.Unlock()
	for _, m := range crds {
		d.recordCRD(m, false)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for group, names := range d.groups {
		if len(names) > 1 {
			d.nameRetries.Add(group)
		}
	}
}

// recordCRD records a CRD and reports whether names may have become free for other CRDs of its group. That is possible
// if the CRD was deleted or its spec has changed. A new CRD frees no names.
func (d *Controller) recordCRD(m *metav1.PartialObjectMetadata, deleted bool) bool {
	group := groupOf(m)
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.groups[group]
	if known == nil {
		known = map[string]int64{}
		d.groups[group] = known
	}
	generation, old := known[m.Name]
	if !deleted {
		known[m.Name] = m.Generation
		return old && generation != m.Generation && len(known) > 1
	}
	delete(known, m.Name)
	if len(known) == 0 {
		delete(d.groups, group)
	}
	return len(known) > 0
}

// finishDeletion deletes the objects of a CRD that is being deleted, then removes the CRD's finalizer.
func (d *Controller) finishDeletion(ctx context.Context, name string) error {
	crd, err := d.crds.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return informer.IgnoreNotFound(err)
	}
	if crd.GetDeletionTimestamp() == nil || !slices.Contains(crd.GetFinalizers(), cleanupFinalizer) {
		return nil // another process has removed the finalizer
	}
	reason, message := "NeverEstablished", "resource was never established"
	if report.IsTrue(crd, "Established") {
		d.terminating.Store(name, nil)
		if err := d.deleteInstances(ctx, crd); err != nil {
			return errors.Join(err, d.reportDelay(ctx, crd, err))
		}
		reason, message = "InstanceDeletionCompleted", "removed all instances"
	}
	report.SetCondition(crd, "Terminating", "False", reason, message)
	if crd, err = d.crds.UpdateStatus(ctx, crd, metav1.UpdateOptions{}); err != nil {
		return informer.IgnoreNotFound(err)
	}
	crd.SetFinalizers(slices.DeleteFunc(crd.GetFinalizers(), func(f string) bool { return f == cleanupFinalizer }))
	_, err = d.crds.Update(ctx, crd, metav1.UpdateOptions{})
	return informer.IgnoreNotFound(err)
}

// instanceDeletionTimeout is how long the deletion of objects may take before the condition of the CRD reports the
// delay. Upstream's finalizer waits for the same time.
const instanceDeletionTimeout = time.Minute

// reportDelay sets the condition of a CRD whose objects could not be deleted yet.
func (d *Controller) reportDelay(ctx context.Context, crd *unstructured.Unstructured, cause error) error {
	reason, message := "InstanceDeletionFailed", fmt.Sprintf("could not issue all deletes: %v", cause)
	if errors.Is(cause, errRemaining) {
		if time.Since(crd.GetDeletionTimestamp().Time) < instanceDeletionTimeout {
			return nil
		}
		reason = "InstanceDeletionCheck"
		message = "could not confirm zero CustomResources remaining: timed out waiting for the condition"
	}
	if !report.SetCondition(crd, "Terminating", "True", reason, message) {
		return nil
	}
	_, err := d.crds.UpdateStatus(ctx, crd, metav1.UpdateOptions{})
	return informer.IgnoreNotFound(err)
}

// deleteInstances deletes all objects of a CRD. It returns errRemaining while objects with finalizers remain.
func (d *Controller) deleteInstances(ctx context.Context, crd *unstructured.Unstructured) error {
	client, err := d.instanceClient(ctx, crd)
	if err != nil {
		return err
	}
	emptied := map[string]bool{}
	err = purge.EachPage(ctx, client, func(page *metav1.PartialObjectMetadataList, _ metav1.ListOptions) error {
		for i := range page.Items {
			namespace := page.Items[i].Namespace
			if emptied[namespace] {
				continue
			}
			err := purge.Namespace(ctx, client.Namespace(namespace), metav1.DeleteOptions{})
			if informer.IgnoreNotFound(err) != nil {
				return err
			}
			emptied[namespace] = true
		}
		return nil
	})
	if err != nil {
		return informer.IgnoreNotFound(err)
	}
	left, err := client.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return informer.IgnoreNotFound(err)
	}
	if len(left.Items) > 0 {
		return errRemaining
	}
	return nil
}

// instanceClient returns a client for the custom objects at a served version. If the CRD serves no version,
// instanceClient updates it to serve its storage version and returns errRemaining. No client can create an object at
// that version, because the CRD is terminating.
func (d *Controller) instanceClient(ctx context.Context, crd *unstructured.Unstructured) (metadata.Getter, error) {
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	for _, v := range versions {
		if version, _ := v.(map[string]any); version["served"] == true {
			name, _ := version["name"].(string)
			resource := schema.GroupVersionResource{Group: group, Version: name, Resource: plural}
			return d.metadata.Resource(resource), nil
		}
	}
	for _, v := range versions {
		if version, _ := v.(map[string]any); version["storage"] == true {
			version["served"] = true
		}
	}
	if err := unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"); err != nil {
		return nil, err
	}
	if _, err := d.crds.Update(ctx, crd, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return nil, errRemaining
}

// retryNames writes the status of those CRDs of a group whose names are not accepted. Each write makes the server
// check the names of the CRD again.
func (d *Controller) retryNames(ctx context.Context, group string) error {
	d.mu.Lock()
	names := slices.Sorted(maps.Keys(d.groups[group]))
	d.mu.Unlock()
	for _, name := range names {
		lacks, err := d.lacksNames(ctx, name)
		if err != nil {
			return err
		}
		if !lacks {
			continue
		}
		crd, err := d.crds.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			_, err = d.crds.UpdateStatus(ctx, crd, metav1.UpdateOptions{})
		}
		if informer.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

// lacksNames reports whether the names of a CRD are not accepted and the CRD is not being deleted. It decodes only the
// fields that it needs, because CRDs may be large.
func (d *Controller) lacksNames(ctx context.Context, name string) (bool, error) {
	raw, err := d.rest.Get().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", name).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return false, informer.IgnoreNotFound(err)
	}
	var crd struct {
		Metadata struct {
			DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
		} `json:"metadata"`
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &crd); err != nil {
		return false, fmt.Errorf("read CRD %s: %w", name, err)
	}
	accepted := meta.IsStatusConditionTrue(crd.Status.Conditions, "NamesAccepted")
	return crd.Metadata.DeletionTimestamp == nil && !accepted, nil
}
