// Package garbage deletes objects whose owners no longer exist, and finishes foreground and orphaning deletions, as
// described under "Garbage Collection" in the Kubernetes documentation. Upstream's collector is not used, because it
// caches the metadata of all objects. This one keeps only the objects that own others or have owners.
package garbage

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
)

// Kinds are the watched kinds.
type Kinds interface {
	// Find returns the kind at the version at which it is watched.
	Find(schema.GroupKind) (k informer.Kind, ok bool)
	// Synced reports whether Observe has received a list of all objects of each kind.
	Synced() bool
}

// Collector is the garbage collector. The graph only selects the objects to check. Each decision is based on
// objects that were just read from the API server.
type Collector struct {
	metadata  metadata.Interface
	kinds     Kinds
	graph     *graph
	attempts  informer.Queue[objectID] // dependents whose owners may no longer exist
	deletions informer.Queue[objectID] // deleted objects that wait for their dependents
	owners    informer.Queue[ownerID]  // owners that are known only from references
	// pendingAttempts and pendingOwners hold keys of the queues above until the kind of an owner is served.
	pendingAttempts pendingKeys[objectID]
	pendingOwners   pendingKeys[ownerID]
	// absentOwners holds the most recently deleted owners. It is used when an owner cannot be looked up because its
	// kind is no longer served.
	absentOwners  *lru.Cache
	core          typedcorev1.EventsGetter
	events        record.EventBroadcaster
	recorder      record.EventRecorder
	searchLimiter flowcontrol.PassiveRateLimiter // limits the lists that are needed only for an Event
}

// searchBurst and searchesPerSecond limit the searches for owners in other namespaces. Each search lists a kind. Any
// user can cause searches by creating objects with owners that do not exist.
const (
	searchBurst       = 25
	searchesPerSecond = 1
)

// ownerID identifies an owner by the content of a dependent's reference.
type ownerID struct {
	apiVersion, kind, namespace, name string
	uid                               types.UID
}

func (o ownerID) reference() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: o.apiVersion, Kind: o.kind, Name: o.name, UID: o.uid}
}

// notServedError reports that an object cannot be read because its kind is not served.
type notServedError schema.GroupKind

func (n notServedError) Error() string {
	return "the kind " + schema.GroupKind(n).String() + " is not served"
}

var (
	errNotSynced = errors.New("some kinds have not been listed yet")
	// errNamespacedOwner reports a reference of a cluster-scoped object to a namespaced owner. Such an owner
	// cannot be looked up, and the object is not deleted.
	errNamespacedOwner = errors.New("a cluster-scoped object has a namespaced owner")
)

// orphanDelay is the delay before the dependents of a deleted owner are orphaned. During the delay, the watches can
// report dependents that were created just before the deletion.
const orphanDelay = 100 * time.Millisecond

// maxAbsentOwners is the capacity of Collector.absentOwners.
const maxAbsentOwners = 4096

// New returns a garbage collector of the objects of the given kinds.
func New(core typedcorev1.EventsGetter, m metadata.Interface, kinds Kinds) *Collector {
	g, events := newGraph(), record.NewBroadcaster()
	source := corev1.EventSource{Component: "garbage-collector-controller"}
	return &Collector{
		core: core, events: events, recorder: events.NewRecorder(scheme.Scheme, source),
		searchLimiter: flowcontrol.NewTokenBucketPassiveRateLimiter(searchesPerSecond, searchBurst),
		metadata:      m, kinds: kinds, graph: g, absentOwners: lru.New(maxAbsentOwners),
		attempts:  informer.NewQueue[objectID]("garbage-collect object"),
		deletions: informer.NewQueue[objectID]("finish deletion"), owners: informer.NewQueue[ownerID]("find owner"),
		pendingAttempts: pendingKeys[objectID]{isNeeded: func(o objectID) bool { return g.contains(o.uid) }},
		pendingOwners:   pendingKeys[ownerID]{isNeeded: func(o ownerID) bool { return g.contains(o.uid) }},
	}
}

// Run collects garbage until ctx is done.
func (c *Collector) Run(ctx context.Context) {
	c.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.core.Events("")})
	defer c.events.Shutdown()
	var running sync.WaitGroup
	running.Go(func() { c.attempts.Work(ctx, 4, c.attempt) })
	running.Go(func() { c.deletions.Work(ctx, 2, c.finishDeletion) })
	running.Go(func() { c.owners.Work(ctx, 2, c.findOwner) })
	running.Wait()
}

// Observe records a change of objects.
func (c *Collector) Observe(ch informer.Change) {
	switch {
	case ch.Stopped:
		for _, uid := range c.graph.missing(ch.Kind, nil, ch.AsOf) {
			c.objectDeleted(uid)
		}
		addAll(c.deletions, c.graph.stopKind(ch.Kind))
	case ch.Object == nil:
		for _, uid := range c.graph.missing(ch.Kind, ch.Listed, ch.AsOf) {
			c.objectDeleted(uid)
		}
		for _, m := range ch.Listed {
			c.objectObserved(ch.Kind, m)
		}
		c.requeuePending(ch.Kind.GroupKind())
	case ch.Deleted:
		c.objectDeleted(ch.Object.UID)
	default:
		c.objectObserved(ch.Kind, ch.Object)
	}
}

func addAll[K comparable](q informer.Queue[K], keys []K) {
	for _, k := range keys {
		q.Add(k)
	}
}

func (c *Collector) requeuePending(k schema.GroupKind) {
	for id := range c.pendingAttempts.take(k) {
		c.attempts.Add(id)
	}
	for id := range c.pendingOwners.take(k) {
		c.owners.Add(id)
	}
}

func (c *Collector) objectObserved(k informer.Kind, m *metav1.PartialObjectMetadata) {
	e := c.graph.put(k, m)
	addAll(c.attempts, e.toCheck)
	addAll(c.deletions, e.waitingOwners)
	for _, r := range e.invalidReferences {
		c.reportInvalidReference(r)
	}
	for _, ref := range e.unknownOwners {
		c.owners.Add(ownerID{ref.APIVersion, ref.Kind, m.Namespace, ref.Name, ref.UID})
	}
	id := objectID{k, m.Namespace, m.Name, m.UID}
	switch {
	case !e.finishDeletion:
	case slices.Contains(m.Finalizers, metav1.FinalizerOrphanDependents):
		c.deletions.AddAfter(id, orphanDelay)
	default:
		c.deletions.Add(id)
	}
}

// reportInvalidReference creates upstream's Event about a reference to an owner in another namespace.
func (c *Collector) reportInvalidReference(r invalidReference) {
	id := r.from
	about := &corev1.ObjectReference{
		APIVersion: id.kind.GroupVersion().String(), Kind: id.kind.Kind,
		Namespace: id.namespace, Name: id.name, UID: id.uid,
	}
	c.recorder.Eventf(about, corev1.EventTypeWarning, "OwnerRefInvalidNamespace",
		"ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
		r.to.APIVersion, r.to.Kind, id.namespace, r.to.Name, r.to.UID, id.namespace)
}

func (c *Collector) objectDeleted(uid types.UID) {
	dependents, waiting := c.graph.remove(uid)
	if len(dependents) > 0 {
		c.absentOwners.Add(uid, nil)
	}
	addAll(c.attempts, dependents)
	addAll(c.deletions, waiting)
}

// findOwner looks up an owner that is known only from a reference, and adds it to the graph. If the owner does not
// exist, findOwner queues its dependents. It does not check the name in the reference, because another dependent may
// refer to the same owner correctly. The method attempt checks each reference.
func (c *Collector) findOwner(ctx context.Context, id ownerID) error {
	k, owner, err := c.lookUp(ctx, id.namespace, id.reference())
	var absent notServedError
	switch {
	case errors.As(err, &absent):
		c.pendingOwners.add(schema.GroupKind(absent), id)
		if _, ok := c.kinds.Find(schema.GroupKind(absent)); ok {
			c.requeuePending(schema.GroupKind(absent))
		}
		return nil
	case errors.Is(err, errNamespacedOwner):
		return c.reportOtherNamespaces(ctx, k, id)
	case err != nil:
		return err
	case owner == nil:
		if err := c.reportOtherNamespaces(ctx, k, id); err != nil {
			return err
		}
		dependents, _, _ := c.graph.dependentsOf(id.uid)
		addAll(c.attempts, dependents)
		return nil
	}
	c.objectObserved(k, owner)
	return nil
}

// reportOtherNamespaces searches for an owner in all namespaces. If the owner exists in a namespace other than
// id.namespace, it reports the references from id.namespace. It does nothing if the rate of searches is exceeded. The
// search does not use the graph, because the graph may not contain such an owner.
func (c *Collector) reportOtherNamespaces(ctx context.Context, k informer.Kind, id ownerID) error {
	if !k.Namespaced || !c.searchLimiter.TryAccept() {
		return nil
	}
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + id.name}
	list, err := c.metadata.Resource(k.GroupVersionResource).List(ctx, options)
	if err != nil {
		return err
	}
	for i := range list.Items {
		if m := &list.Items[i]; m.UID == id.uid && m.Namespace != id.namespace {
			for _, r := range c.graph.referencesTo(id.uid, id.namespace) {
				c.reportInvalidReference(r)
			}
		}
	}
	return nil
}

// lookUp reads the object that ref identifies. It returns nil metadata if the object does not exist.
func (c *Collector) lookUp(
	ctx context.Context, namespace string, ref metav1.OwnerReference,
) (informer.Kind, *metav1.PartialObjectMetadata, error) {
	id := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
	k, served := c.kinds.Find(id)
	if !served {
		if _, absent := c.absentOwners.Get(ref.UID); absent {
			return k, nil, nil
		}
		return k, nil, notServedError(id)
	}
	if k.Namespaced && namespace == "" {
		return k, nil, errNamespacedOwner
	}
	owner, err := c.client(k, namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if isMissing(err, ref.Name) || err == nil && owner.UID != ref.UID {
		return k, nil, nil
	}
	return k, owner, err
}

// isMissing reports whether err means that no object has the given name. It returns false for a NotFound error whose
// cause is that the kind or the version is not served.
func isMissing(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name == name &&
		!apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

func (c *Collector) client(k informer.Kind, namespace string) metadata.ResourceInterface {
	r := c.metadata.Resource(k.GroupVersionResource)
	if k.Namespaced {
		return r.Namespace(namespace)
	}
	return r
}

// getLive reads an object of the graph from the API server, at the version at which its kind is watched. If the object
// is deleted, getLive updates the graph and returns nil.
func (c *Collector) getLive(
	ctx context.Context, id objectID,
) (*metav1.PartialObjectMetadata, metadata.ResourceInterface, error) {
	k, m, err := c.lookUp(ctx, id.namespace, metav1.OwnerReference{
		APIVersion: id.kind.GroupVersion().String(), Kind: id.kind.Kind, Name: id.name, UID: id.uid,
	})
	if m == nil && err == nil {
		c.objectDeleted(id.uid)
	}
	return m, c.client(k, id.namespace), err
}

// attempt calls attemptToDelete. If a kind that attemptToDelete needs is not served, the object is pending until the
// kind is served.
func (c *Collector) attempt(ctx context.Context, id objectID) error {
	err := c.attemptToDelete(ctx, id)
	var absent notServedError
	switch {
	case errors.Is(err, errNamespacedOwner):
		klog.FromContext(ctx).V(1).Info("object is not garbage-collected", "object", id, "reason", err.Error())
		return nil
	case !errors.As(err, &absent):
		return err
	}
	c.pendingAttempts.add(schema.GroupKind(absent), id)
	if _, ok := c.kinds.Find(schema.GroupKind(absent)); ok {
		c.requeuePending(schema.GroupKind(absent))
	}
	return nil
}

// attemptToDelete deletes an object if none of its owners exists. If at least one owner exists, attemptToDelete only
// removes the references to missing owners.
func (c *Collector) attemptToDelete(ctx context.Context, id objectID) error {
	m, client, err := c.getLive(ctx, id)
	if m == nil || err != nil || len(m.OwnerReferences) == 0 {
		return err
	}
	if m.DeletionTimestamp != nil {
		if slices.Contains(m.Finalizers, metav1.FinalizerDeleteDependents) {
			c.deletions.Add(id)
		}
		return nil
	}
	solid, dangling, waiting, err := c.classifyReferences(ctx, m)
	if err != nil {
		return err
	}
	if len(solid) > 0 {
		if len(dangling)+len(waiting) == 0 {
			return nil
		}
		return dropOwners(ctx, client, m, append(dangling, waiting...))
	}
	policy := metav1.DeletePropagationBackground
	switch dependents, _, someWait := c.graph.dependentsOf(id.uid); {
	case len(waiting) > 0 && len(dependents) > 0:
		if unblocked := withoutBlocking(m.OwnerReferences); unblocked != nil && someWait {
			// Without this patch, objects that own each other would wait for each other forever.
			if err := patchMeta(ctx, client, m, "ownerReferences", unblocked); err != nil {
				return err
			}
			c.attempts.Add(id)
			return nil
		}
		policy = metav1.DeletePropagationForeground
	case slices.Contains(m.Finalizers, metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case slices.Contains(m.Finalizers, metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	}
	return informer.IgnoreNotFound(client.Delete(ctx, id.name, metav1.DeleteOptions{
		PropagationPolicy: &policy,
		Preconditions:     &metav1.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion},
	}))
}

// withoutBlocking returns a copy of the references without blockOwnerDeletion, or nil if no reference has it set.
func withoutBlocking(refs []metav1.OwnerReference) []metav1.OwnerReference {
	if !slices.ContainsFunc(refs, isBlocking) {
		return nil
	}
	free := slices.Clone(refs)
	for i := range free {
		free[i].BlockOwnerDeletion = nil
	}
	return free
}

// classifyReferences reads the owners of m. It returns the references to owners that exist (solid), to
// owners that do not exist (dangling), and to owners that are being deleted in the foreground (waiting).
func (c *Collector) classifyReferences(
	ctx context.Context, m *metav1.PartialObjectMetadata,
) (solid, dangling, waiting []metav1.OwnerReference, err error) {
	for _, ref := range m.OwnerReferences {
		_, owner, err := c.lookUp(ctx, m.Namespace, ref)
		switch {
		case err != nil:
			return nil, nil, nil, err
		case owner == nil:
			dangling = append(dangling, ref)
		case owner.DeletionTimestamp != nil && slices.Contains(owner.Finalizers, metav1.FinalizerDeleteDependents):
			waiting = append(waiting, ref)
		default:
			solid = append(solid, ref)
		}
	}
	return solid, dangling, waiting, nil
}

// finishDeletion removes the garbage collector's finalizer from a deleted object when the object's dependents are
// deleted or orphaned.
func (c *Collector) finishDeletion(ctx context.Context, id objectID) error {
	m, client, err := c.getLive(ctx, id)
	var absent notServedError
	if errors.As(err, &absent) {
		return nil // the object is queued again when its kind is served and listed
	}
	if m == nil || err != nil || m.DeletionTimestamp == nil {
		return err
	}
	orphan := slices.Contains(m.Finalizers, metav1.FinalizerOrphanDependents)
	if !orphan && !slices.Contains(m.Finalizers, metav1.FinalizerDeleteDependents) {
		return nil
	}
	if !c.kinds.Synced() {
		return errNotSynced
	}
	dependents, blocking, _ := c.graph.dependentsOf(id.uid)
	if orphan {
		if err := c.orphanDependents(ctx, id, dependents); err != nil {
			return err
		}
		return dropFinalizer(ctx, client, m, metav1.FinalizerOrphanDependents)
	}
	addAll(c.attempts, dependents)
	if len(blocking) > 0 {
		return nil // the deletion of the last blocking dependent queues the owner again
	}
	return dropFinalizer(ctx, client, m, metav1.FinalizerDeleteDependents)
}

// orphanDependents removes the reference to owner from each dependent.
func (c *Collector) orphanDependents(ctx context.Context, owner objectID, dependents []objectID) error {
	for _, d := range dependents {
		m, client, err := c.getLive(ctx, d)
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
		if err := dropOwners(ctx, client, m, m.OwnerReferences[i:i+1]); err != nil {
			return err
		}
	}
	return nil
}

func dropOwners(
	ctx context.Context, client metadata.ResourceInterface, m *metav1.PartialObjectMetadata,
	drop []metav1.OwnerReference,
) error {
	remaining := slices.DeleteFunc(slices.Clone(m.OwnerReferences), func(ref metav1.OwnerReference) bool {
		return slices.ContainsFunc(drop, func(r metav1.OwnerReference) bool { return r.UID == ref.UID })
	})
	return patchMeta(ctx, client, m, "ownerReferences", remaining)
}

func dropFinalizer(
	ctx context.Context, client metadata.ResourceInterface, m *metav1.PartialObjectMetadata, name string,
) error {
	remaining := slices.DeleteFunc(slices.Clone(m.Finalizers), func(f string) bool { return f == name })
	return patchMeta(ctx, client, m, "finalizers", remaining)
}

// patchMeta replaces one field of metadata. It fails with a conflict if the object has changed since it was read.
func patchMeta(
	ctx context.Context, client metadata.ResourceInterface, m *metav1.PartialObjectMetadata, field string, value any,
) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": m.UID, "resourceVersion": m.ResourceVersion, field: value,
	}})
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, m.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return informer.IgnoreNotFound(err)
}
