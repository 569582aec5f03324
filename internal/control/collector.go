package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
)

// collector deletes what has lost its owners and finishes foreground and
// orphaning deletions, as described under "Garbage Collection" in the
// Kubernetes documentation. The graph says where to look; what is done is decided on
// live objects only.
type collector struct {
	clients *clients
	kinds   *kinds
	graph   *graph
	// attempts are dependents that may have lost their owners; deletions are objects
	// that wait for their dependents; owners are known from references only.
	attempts  queue[objectID]
	deletions queue[objectID]
	owners    queue[ownerID]
}

// ownerID is an owner as a dependent's reference names it.
type ownerID struct {
	apiVersion, kind, namespace, name string
	uid                               types.UID
}

var (
	errNotSynced = errors.New("not every kind has been listed yet")
	errRemaining = errors.New("dependents remain")
)

func newCollector(c *clients, k *kinds) *collector {
	return &collector{
		clients: c, kinds: k, graph: newGraph(), attempts: newQueue[objectID]("collect"),
		deletions: newQueue[objectID]("finish deletion"), owners: newQueue[ownerID]("find owner"),
	}
}

func (c *collector) run(ctx context.Context) {
	go c.attempts.work(ctx, 4, c.attempt)
	go c.deletions.work(ctx, 2, c.finish)
	c.owners.work(ctx, 2, c.findOwner)
}

func (c *collector) observe(ch change) {
	if ch.object == nil {
		for _, uid := range c.graph.missing(ch.kind, ch.listed) {
			c.gone(uid)
		}
		for _, m := range ch.listed {
			c.seen(ch.kind, m)
		}
		return
	}
	if ch.deleted {
		c.gone(ch.object.UID)
		return
	}
	c.seen(ch.kind, ch.object)
}

func (c *collector) seen(k kind, m *metav1.PartialObjectMetadata) {
	n, ownersChanged, unknown := c.graph.put(k, m)
	if n == nil {
		return
	}
	id := objectID{k, m.Namespace, m.Name, m.UID}
	if m.DeletionTimestamp != nil {
		c.deletions.Add(id)
	}
	if ownersChanged && len(m.OwnerReferences) > 0 {
		c.attempts.Add(id)
	}
	for _, owner := range unknown {
		for _, ref := range m.OwnerReferences {
			if ref.UID == owner.id.uid {
				c.owners.Add(ownerID{ref.APIVersion, ref.Kind, m.Namespace, ref.Name, ref.UID})
			}
		}
	}
}

func (c *collector) gone(uid types.UID) {
	dependents, waiting := c.graph.remove(uid)
	for _, d := range dependents {
		c.attempts.Add(d)
	}
	for _, w := range waiting {
		c.deletions.Add(w)
	}
}

// findOwner brings an owner that only references speak of into the graph, so that
// its state decides over its dependents.
func (c *collector) findOwner(ctx context.Context, id ownerID) error {
	owner, err := c.lookUp(ctx, id.namespace, metav1.OwnerReference{APIVersion: id.apiVersion, Kind: id.kind, Name: id.name, UID: id.uid})
	if err != nil {
		return err
	}
	if owner == nil {
		c.gone(id.uid)
		return nil
	}
	if owner.DeletionTimestamp != nil {
		k, _ := c.kinds.find(id.apiVersion, id.kind)
		c.seen(k, owner)
	}
	return nil
}

// lookUp reads an owner; nil means that it does not exist (any more).
func (c *collector) lookUp(ctx context.Context, namespace string, ref metav1.OwnerReference) (*metav1.PartialObjectMetadata, error) {
	k, ok := c.kinds.find(ref.APIVersion, ref.Kind)
	if !ok {
		return nil, fmt.Errorf("the kind %s of %s is not served", ref.Kind, ref.APIVersion)
	}
	if k.Namespaced && namespace == "" {
		return nil, fmt.Errorf("a cluster-scoped object names the namespaced owner %s %s", ref.Kind, ref.Name)
	}
	owner, err := c.client(k, namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && owner.UID != ref.UID {
		return nil, nil
	}
	return owner, err
}

func (c *collector) client(k kind, namespace string) metadata.ResourceInterface {
	r := c.clients.metadata.Resource(k.GroupVersionResource)
	if k.Namespaced {
		return r.Namespace(namespace)
	}
	return r
}

// live reads an object of the graph; nil means that it is gone.
func (c *collector) live(ctx context.Context, id objectID) (*metav1.PartialObjectMetadata, error) {
	m, err := c.client(id.kind, id.namespace).Get(ctx, id.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && m.UID != id.uid {
		c.gone(id.uid)
		return nil, nil
	}
	return m, err
}

// attempt deletes an object if none of its owners exists, and takes references
// to lost owners off it if one does.
func (c *collector) attempt(ctx context.Context, id objectID) error {
	m, err := c.live(ctx, id)
	if m == nil || err != nil || len(m.OwnerReferences) == 0 {
		return err
	}
	if m.DeletionTimestamp != nil && !hasFinalizer(m, metav1.FinalizerDeleteDependents) {
		return nil
	}
	solid, lost, waiting, err := c.sortOwners(ctx, m)
	if err != nil {
		return err
	}
	switch {
	case len(solid) > 0 && len(lost)+len(waiting) > 0:
		return c.dropOwners(ctx, id, m, append(lost, waiting...))
	case len(solid) > 0 || m.DeletionTimestamp != nil:
		return nil
	}
	policy := metav1.DeletePropagationBackground
	switch dependents, _ := c.graph.dependentsOf(id.uid); {
	case len(waiting) > 0 && len(dependents) > 0:
		policy = metav1.DeletePropagationForeground
	case hasFinalizer(m, metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case hasFinalizer(m, metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	}
	err = c.client(id.kind, id.namespace).Delete(ctx, id.name, metav1.DeleteOptions{
		PropagationPolicy: &policy,
		Preconditions:     &metav1.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// sortOwners reads every owner: those that keep the object alive, those that are
// gone, and those that wait for it to be deleted.
func (c *collector) sortOwners(ctx context.Context, m *metav1.PartialObjectMetadata) (solid, lost, waiting []metav1.OwnerReference, err error) {
	for _, ref := range m.OwnerReferences {
		owner, err := c.lookUp(ctx, m.Namespace, ref)
		switch {
		case err != nil:
			return nil, nil, nil, err
		case owner == nil:
			lost = append(lost, ref)
		case owner.DeletionTimestamp != nil && hasFinalizer(owner, metav1.FinalizerDeleteDependents):
			waiting = append(waiting, ref)
		default:
			solid = append(solid, ref)
		}
	}
	return solid, lost, waiting, nil
}

// finish takes the collector's finalizers off an object whose dependents are gone or let go.
func (c *collector) finish(ctx context.Context, id objectID) error {
	m, err := c.live(ctx, id)
	if m == nil || err != nil || m.DeletionTimestamp == nil {
		return err
	}
	if !hasFinalizer(m, metav1.FinalizerDeleteDependents) && !hasFinalizer(m, metav1.FinalizerOrphanDependents) {
		return nil
	}
	if !c.kinds.synced() {
		return errNotSynced
	}
	dependents, blocking := c.graph.dependentsOf(id.uid)
	if hasFinalizer(m, metav1.FinalizerOrphanDependents) {
		if err := c.letGo(ctx, id, dependents); err != nil {
			return err
		}
		return c.dropFinalizer(ctx, id, m, metav1.FinalizerOrphanDependents)
	}
	for _, d := range dependents {
		c.attempts.Add(d)
	}
	if len(blocking) > 0 {
		return nil // the last of them to go brings the owner back here
	}
	return c.dropFinalizer(ctx, id, m, metav1.FinalizerDeleteDependents)
}

// letGo takes the reference to owner off each dependent.
func (c *collector) letGo(ctx context.Context, owner objectID, dependents []objectID) error {
	for _, d := range dependents {
		m, err := c.live(ctx, d)
		if err != nil {
			return err
		}
		if m == nil {
			continue
		}
		i := slices.IndexFunc(m.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == owner.uid })
		if i < 0 {
			continue
		}
		if err := c.dropOwners(ctx, d, m, m.OwnerReferences[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (c *collector) dropOwners(ctx context.Context, id objectID, m *metav1.PartialObjectMetadata, drop []metav1.OwnerReference) error {
	kept := []metav1.OwnerReference{}
	for _, ref := range m.OwnerReferences {
		if !slices.ContainsFunc(drop, func(r metav1.OwnerReference) bool { return r.UID == ref.UID }) {
			kept = append(kept, ref)
		}
	}
	return c.patchMeta(ctx, id, m, "ownerReferences", kept)
}

func (c *collector) dropFinalizer(ctx context.Context, id objectID, m *metav1.PartialObjectMetadata, name string) error {
	kept := []string{}
	for _, f := range m.Finalizers {
		if f != name {
			kept = append(kept, f)
		}
	}
	return c.patchMeta(ctx, id, m, "finalizers", kept)
}

// patchMeta replaces one field of metadata, provided the object is still as read.
func (c *collector) patchMeta(ctx context.Context, id objectID, m *metav1.PartialObjectMetadata, field string, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": m.UID, "resourceVersion": m.ResourceVersion, field: value,
	}})
	if err != nil {
		return err
	}
	_, err = c.client(id.kind, id.namespace).Patch(ctx, id.name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
