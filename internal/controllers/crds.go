package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
)

// crdController finishes the deletion of CRDs: it deletes their objects and then removes the finalizer. When the names
// of a CRD become free, it makes the server check the names of other CRDs again.
type crdController struct {
	clients     *clients
	deletions   queue[string]
	nameRetries queue[string] // by group

	terminating nameSet // CRDs that wait for the deletion of their objects

	mu     sync.Mutex
	groups map[string]map[string]int64 // generations of the CRDs, by group and name
}

const cleanupFinalizer = "customresourcecleanup.apiextensions.k8s.io"

func newCRDController(c *clients) *crdController {
	return &crdController{
		clients: c, deletions: newQueue[string]("finalize CRD"), nameRetries: newQueue[string]("retry CRD names"),
		groups: map[string]map[string]int64{},
	}
}

func (d *crdController) run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { d.deletions.work(ctx, 4, d.finishDeletion) })
	running.Go(func() { d.nameRetries.work(ctx, 1, d.retryNames) })
	running.Wait()
}

func (d *crdController) observe(ch change) {
	if ch.kind.groupKind() != crdKind {
		if name := ch.kind.Resource + "." + ch.kind.Group; ch.deleted && d.terminating.has(name) {
			d.deletions.AddAfter(name, batchDelay)
		}
		return
	}
	if ch.object == nil {
		d.relist(ch.listed)
	}
	for _, m := range ch.objects() {
		if !ch.deleted && m.DeletionTimestamp != nil {
			d.deletions.Add(m.Name)
		}
	}
	if ch.object != nil && d.recordCRD(ch.object, ch.deleted) {
		d.nameRetries.AddAfter(groupOf(ch.object), batchDelay)
	}
}

func groupOf(crd *metav1.PartialObjectMetadata) string {
	_, group, _ := strings.Cut(crd.Name, ".")
	return group
}

// relist replaces the recorded CRDs. In each group with more than one CRD it triggers a new check of the names,
// because names may have become free without an event.
func (d *crdController) relist(crds []*metav1.PartialObjectMetadata) {
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
func (d *crdController) recordCRD(m *metav1.PartialObjectMetadata, deleted bool) bool {
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

func (d *crdController) crds() dynamic.ResourceInterface {
	gv := crdKind.WithVersion("v1").GroupVersion()
	return d.clients.dynamic.Resource(gv.WithResource("customresourcedefinitions"))
}

// finishDeletion deletes the objects of a CRD that is being deleted, then removes the CRD's finalizer.
func (d *crdController) finishDeletion(ctx context.Context, name string) error {
	crd, err := d.crds().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		d.terminating.remove(name)
		return nil
	}
	if err != nil {
		return err
	}
	if crd.GetDeletionTimestamp() == nil || !slices.Contains(crd.GetFinalizers(), cleanupFinalizer) {
		d.terminating.remove(name) // another process has removed the finalizer
		return nil
	}
	reason, message := "NeverEstablished", "resource was never established"
	if isConditionTrue(crd, "Established") {
		d.terminating.add(name)
		if err := d.deleteInstances(ctx, crd); err != nil {
			return errors.Join(err, d.reportDelay(ctx, crd, err))
		}
		reason, message = "InstanceDeletionCompleted", "removed all instances"
	}
	d.terminating.remove(name)
	setCondition(crd, "Terminating", "False", reason, message)
	if crd, err = d.crds().UpdateStatus(ctx, crd, metav1.UpdateOptions{}); err != nil {
		return ignoreNotFound(err)
	}
	crd.SetFinalizers(slices.DeleteFunc(crd.GetFinalizers(), func(f string) bool { return f == cleanupFinalizer }))
	_, err = d.crds().Update(ctx, crd, metav1.UpdateOptions{})
	return ignoreNotFound(err)
}

// instanceDeletionTimeout is how long the deletion of objects may take before the condition of the CRD reports the
// delay. Upstream's finalizer waits for the same time.
const instanceDeletionTimeout = time.Minute

// reportDelay sets the condition of a CRD whose objects could not be deleted yet.
func (d *crdController) reportDelay(ctx context.Context, crd *unstructured.Unstructured, cause error) error {
	reason, message := "InstanceDeletionFailed", fmt.Sprintf("could not issue all deletes: %v", cause)
	if errors.Is(cause, errRemaining) {
		if time.Since(crd.GetDeletionTimestamp().Time) < instanceDeletionTimeout {
			return nil
		}
		reason = "InstanceDeletionCheck"
		message = "could not confirm zero CustomResources remaining: timed out waiting for the condition"
	}
	if !setCondition(crd, "Terminating", "True", reason, message) {
		return nil
	}
	_, err := d.crds().UpdateStatus(ctx, crd, metav1.UpdateOptions{})
	return ignoreNotFound(err)
}

// deleteInstances deletes all objects of a CRD. It returns errRemaining while objects with finalizers remain.
func (d *crdController) deleteInstances(ctx context.Context, crd *unstructured.Unstructured) error {
	client, err := d.instanceClient(ctx, crd)
	if err != nil {
		return err
	}
	emptied := map[string]bool{}
	options := metav1.ListOptions{Limit: 500}
	for {
		page, err := client.List(ctx, options)
		if err != nil {
			return ignoreNotFound(err)
		}
		for i := range page.Items {
			namespace := page.Items[i].Namespace
			if emptied[namespace] {
				continue
			}
			err := purge(ctx, client.Namespace(namespace), metav1.DeleteOptions{})
			if ignoreNotFound(err) != nil {
				return err
			}
			emptied[namespace] = true
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	left, err := client.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return ignoreNotFound(err)
	}
	if len(left.Items) > 0 {
		return errRemaining
	}
	return nil
}

// instanceClient returns a client for the custom objects at a served version. If the CRD serves no version,
// instanceClient updates it to serve its storage version and returns errRemaining. No client can create an object at
// that version, because the CRD is terminating.
func (d *crdController) instanceClient(ctx context.Context, crd *unstructured.Unstructured) (metadata.Getter, error) {
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	for _, v := range versions {
		if version, _ := v.(map[string]any); version["served"] == true {
			name, _ := version["name"].(string)
			resource := schema.GroupVersionResource{Group: group, Version: name, Resource: plural}
			return d.clients.metadata.Resource(resource), nil
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
	if _, err := d.crds().Update(ctx, crd, metav1.UpdateOptions{}); err != nil {
		return nil, err
	}
	return nil, errRemaining
}

// retryNames writes the status of those CRDs of a group whose names are not accepted. Each write makes the server
// check the names of the CRD again.
func (d *crdController) retryNames(ctx context.Context, group string) error {
	d.mu.Lock()
	var names []string
	for name := range d.groups[group] {
		names = append(names, name)
	}
	d.mu.Unlock()
	slices.Sort(names)
	for _, name := range names {
		lacks, err := d.lacksNames(ctx, name)
		if err != nil {
			return err
		}
		if !lacks {
			continue
		}
		crd, err := d.crds().Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			_, err = d.crds().UpdateStatus(ctx, crd, metav1.UpdateOptions{})
		}
		if ignoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

// lacksNames reports whether the names of a CRD are not accepted and the CRD is not being deleted. It decodes only the
// fields that it needs, because CRDs may be large.
func (d *crdController) lacksNames(ctx context.Context, name string) (bool, error) {
	raw, err := d.clients.discovery.RESTClient().Get().
		AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", name).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err != nil {
		return false, ignoreNotFound(err)
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

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
