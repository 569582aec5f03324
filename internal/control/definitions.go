package control

import (
	"context"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
)

// definitions ends CRDs that are being deleted, once their objects are gone, and
// gives names that become free to the CRDs that wait for them.
type definitions struct {
	clients *clients
	ending  queue[string]
	naming  queue[string] // by group

	emptying waiting // CRDs whose objects have finalizers left

	mu     sync.Mutex
	groups map[string]map[string]bool // group -> names of its CRDs
}

const cleanupFinalizer = "customresourcecleanup.apiextensions.k8s.io"

func newDefinitions(c *clients, _ *kinds) *definitions {
	return &definitions{
		clients: c, ending: newQueue[string]("end CRD"), naming: newQueue[string]("name CRDs"),
		groups: map[string]map[string]bool{},
	}
}

func (d *definitions) run(ctx context.Context) {
	go d.ending.work(ctx, 4, d.end)
	d.naming.work(ctx, 1, d.name)
}

func (d *definitions) observe(ch change) {
	if ch.kind.groupKind() != crdKind {
		if name := ch.kind.Resource + "." + ch.kind.Group; ch.deleted && d.emptying.has(name) {
			d.ending.Add(name)
		}
		return
	}
	for _, m := range ch.listed {
		d.seen(m, false)
	}
	if ch.object != nil {
		d.seen(ch.object, ch.deleted)
	}
}

func (d *definitions) seen(m *metav1.PartialObjectMetadata, deleted bool) {
	_, group, _ := strings.Cut(m.Name, ".")
	d.mu.Lock()
	if d.groups[group] == nil {
		d.groups[group] = map[string]bool{}
	}
	if deleted {
		delete(d.groups[group], m.Name)
	} else {
		d.groups[group][m.Name] = true
	}
	alone := len(d.groups[group]) < 2
	d.mu.Unlock()
	if m.DeletionTimestamp != nil && !deleted {
		d.ending.Add(m.Name)
	}
	if !alone || deleted {
		d.naming.Add(group)
	}
}

func (d *definitions) crds() dynamic.ResourceInterface {
	return d.clients.dynamic.Resource(crdKind.WithVersion("v1").GroupVersion().WithResource("customresourcedefinitions"))
}

// end deletes the objects of a CRD that is being deleted, then lets it go.
func (d *definitions) end(ctx context.Context, name string) error {
	crd, err := d.crds().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if crd.GetDeletionTimestamp() == nil || !slices.Contains(crd.GetFinalizers(), cleanupFinalizer) {
		return nil
	}
	if isConditionTrue(crd, "Established") {
		d.emptying.add(name)
		if err := d.empty(ctx, crd); err != nil {
			return err
		}
	}
	d.emptying.remove(name)
	setCondition(crd, "Terminating", "False", "InstanceDeletionCompleted", "removed all instances")
	if crd, err = d.crds().UpdateStatus(ctx, crd, metav1.UpdateOptions{}); err != nil {
		return ignoreNotFound(err)
	}
	crd.SetFinalizers(slices.DeleteFunc(crd.GetFinalizers(), func(f string) bool { return f == cleanupFinalizer }))
	_, err = d.crds().Update(ctx, crd, metav1.UpdateOptions{})
	return ignoreNotFound(err)
}

// empty deletes all objects of a CRD; errRemaining while finalizers keep some.
func (d *definitions) empty(ctx context.Context, crd *unstructured.Unstructured) error {
	client, err := d.objects(ctx, crd)
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
			err := client.Namespace(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
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

// objects is a client for the custom objects at a served version. A CRD that serves none
// is made to serve its storage version: it is terminating, so nothing can be created.
func (d *definitions) objects(ctx context.Context, crd *unstructured.Unstructured) (metadata.Getter, error) {
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	for _, v := range versions {
		if version, _ := v.(map[string]any); version["served"] == true {
			name, _ := version["name"].(string)
			return d.clients.metadata.Resource(schema.GroupVersionResource{Group: group, Version: name, Resource: plural}), nil
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

// name writes the status of each CRD of a group that has not got all its names: the
// server decides anew which it may have.
func (d *definitions) name(ctx context.Context, group string) error {
	d.mu.Lock()
	var names []string
	for name := range d.groups[group] {
		names = append(names, name)
	}
	d.mu.Unlock()
	slices.Sort(names)
	for _, name := range names {
		crd, err := d.crds().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			if apierrors.IsNotFound(err) {
				continue
			}
			return err
		}
		if isConditionTrue(crd, "NamesAccepted") || crd.GetDeletionTimestamp() != nil {
			continue
		}
		if _, err := d.crds().UpdateStatus(ctx, crd, metav1.UpdateOptions{}); ignoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
