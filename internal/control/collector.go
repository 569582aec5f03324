package control

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
	// What cannot be decided until a kind is served waits here.
	parkedAttempts parking[objectID]
	parkedOwners   parking[ownerID]
	// absentOwners are the owners that went last, for dependents that ask when the owner's kind is no longer there to be asked.
	absentOwners *lru.Cache
	events       record.EventBroadcaster
	recorder     record.EventRecorder
	searches     flowcontrol.PassiveRateLimiter // limits findElsewhere
}

// searchBurst and searchesPerSecond limit the searches for owners in other namespaces. Each search lists a kind, and each
// user who may create objects can cause searches by references to owners that do not exist.
const (
	searchBurst       = 25
	searchesPerSecond = 1
)

// ownerID is an owner as a dependent's reference names it.
type ownerID struct {
	apiVersion, kind, namespace, name string
	uid                               types.UID
}

func (o ownerID) reference() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: o.apiVersion, Kind: o.kind, Name: o.name, UID: o.uid}
}

// notServed says that an object cannot be read because its kind is not there.
type notServed schema.GroupKind

func (n notServed) Error() string {
	return "the kind " + schema.GroupKind(n).String() + " is not served"
}

var (
	errNotSynced = errors.New("not every kind has been listed yet")
	errRemaining = errors.New("dependents remain")
	// errOutOfReach is a cluster-scoped object's namespaced owner: it cannot be found, and
	// nothing is deleted for it.
	errOutOfReach = errors.New("a cluster-scoped object names a namespaced owner")
)

// orphanDelay lets the watches of dependents that were made just before their owner's deletion
// bring them here first.
const orphanDelay = 100 * time.Millisecond

const maxAbsentOwners = 4096

func newCollector(c *clients, k *kinds) *collector {
	g, events := newGraph(), record.NewBroadcaster()
	return &collector{
		events: events, recorder: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "garbage-collector-controller"}),
		searches: flowcontrol.NewTokenBucketPassiveRateLimiter(searchesPerSecond, searchBurst),
		clients:  c, kinds: k, graph: g, absentOwners: lru.New(maxAbsentOwners), attempts: newQueue[objectID]("collect"),
		deletions: newQueue[objectID]("finish deletion"), owners: newQueue[ownerID]("find owner"),
		parkedAttempts: parking[objectID]{matters: func(o objectID) bool { return g.has(o.uid) }},
		parkedOwners:   parking[ownerID]{matters: func(o ownerID) bool { return g.has(o.uid) }},
	}
}

func (c *collector) run(ctx context.Context) {
	c.events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.clients.core.Events("")})
	defer c.events.Shutdown()
	var running sync.WaitGroup
	running.Go(func() { c.attempts.work(ctx, 4, c.attempt) })
	running.Go(func() { c.deletions.work(ctx, 2, c.finish) })
	running.Go(func() { c.owners.work(ctx, 2, c.findOwner) })
	running.Wait()
}

func (c *collector) observe(ch change) {
	switch {
	case ch.unfollowed:
		for _, uid := range c.graph.missing(ch.kind, nil, ch.asOf) {
			c.gone(uid)
		}
		addAll(c.deletions, c.graph.hide(ch.kind))
	case ch.object == nil:
		for _, uid := range c.graph.missing(ch.kind, ch.listed, ch.asOf) {
			c.gone(uid)
		}
		for _, m := range ch.listed {
			c.seen(ch.kind, m)
		}
		c.unpark(ch.kind.groupKind())
	case ch.deleted:
		c.gone(ch.object.UID)
	default:
		c.seen(ch.kind, ch.object)
	}
}

func addAll[K comparable](q queue[K], keys []K) {
	for _, k := range keys {
		q.Add(k)
	}
}

func (c *collector) unpark(k schema.GroupKind) {
	for id := range c.parkedAttempts.take(k) {
		c.attempts.Add(id)
	}
	for id := range c.parkedOwners.take(k) {
		c.owners.Add(id)
	}
}

func (c *collector) seen(k kind, m *metav1.PartialObjectMetadata) {
	e := c.graph.put(k, m)
	addAll(c.attempts, e.doubtful)
	addAll(c.deletions, e.waiting)
	for _, r := range e.invalid {
		c.report(r)
	}
	for _, ref := range e.unknown {
		c.owners.Add(ownerID{ref.APIVersion, ref.Kind, m.Namespace, ref.Name, ref.UID})
	}
	id := objectID{k, m.Namespace, m.Name, m.UID}
	switch {
	case !e.finish:
	case hasFinalizer(m, metav1.FinalizerOrphanDependents):
		c.deletions.AddAfter(id, orphanDelay)
	default:
		c.deletions.Add(id)
	}
}

// report emits upstream's Event about a reference to an owner that is in another namespace.
func (c *collector) report(r invalidReference) {
	id := r.from
	about := &corev1.ObjectReference{APIVersion: id.kind.GroupVersion().String(), Kind: id.kind.Kind, Namespace: id.namespace, Name: id.name, UID: id.uid}
	c.recorder.Eventf(about, corev1.EventTypeWarning, "OwnerRefInvalidNamespace", "ownerRef [%s/%s, namespace: %s, name: %s, uid: %s] does not exist in namespace %q",
		r.to.APIVersion, r.to.Kind, id.namespace, r.to.Name, r.to.UID, id.namespace)
}

func (c *collector) gone(uid types.UID) {
	dependents, waiting := c.graph.remove(uid)
	if len(dependents) > 0 {
		c.absentOwners.Add(uid, nil)
	}
	addAll(c.attempts, dependents)
	addAll(c.deletions, waiting)
}

// findOwner brings an owner that only references speak of into the graph, so that
// its state decides over its dependents. Whether a reference to it is right is for attempt
// to judge: another dependent may name the same owner by its true name.
func (c *collector) findOwner(ctx context.Context, id ownerID) error {
	k, owner, err := c.lookUp(ctx, id.namespace, id.reference())
	var absent notServed
	switch {
	case errors.As(err, &absent):
		c.parkedOwners.add(schema.GroupKind(absent), id)
		if _, ok := c.kinds.find(id.apiVersion, id.kind); ok {
			c.unpark(schema.GroupKind(absent))
		}
		return nil
	case errors.Is(err, errOutOfReach):
		return c.findElsewhere(ctx, k, id)
	case err != nil:
		return err
	case owner == nil:
		if err := c.findElsewhere(ctx, k, id); err != nil {
			return err
		}
		dependents, _ := c.graph.dependentsOf(id.uid)
		addAll(c.attempts, dependents)
		return nil
	}
	c.seen(k, owner)
	return nil
}

// findElsewhere reports references to an owner that exists in another namespace than the dependents. It does nothing above
// the limit of searches. It lists the kind, because the graph has no owners without dependents.
func (c *collector) findElsewhere(ctx context.Context, k kind, id ownerID) error {
	if !k.Namespaced || !c.searches.TryAccept() {
		return nil
	}
	list, err := c.clients.metadata.Resource(k.GroupVersionResource).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + id.name})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if m := &list.Items[i]; m.UID == id.uid && m.Namespace != id.namespace {
			for _, r := range c.graph.referencesTo(id.uid, id.namespace) {
				c.report(r)
			}
		}
	}
	return nil
}

// lookUp reads an owner; nil means that it does not exist (any more).
func (c *collector) lookUp(ctx context.Context, namespace string, ref metav1.OwnerReference) (kind, *metav1.PartialObjectMetadata, error) {
	k, ok := c.kinds.find(ref.APIVersion, ref.Kind)
	switch {
	case !ok && c.isAbsent(ref.UID):
		return k, nil, nil
	case !ok:
		gv, _ := schema.ParseGroupVersion(ref.APIVersion)
		return k, nil, notServed{gv.Group, ref.Kind}
	case k.Namespaced && namespace == "":
		return k, nil, errOutOfReach
	}
	owner, err := c.client(k, namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if isMissing(err, ref.Name) || err == nil && owner.UID != ref.UID {
		return k, nil, nil
	}
	return k, owner, err
}

func (c *collector) isAbsent(owner types.UID) bool {
	_, absent := c.absentOwners.Get(owner)
	return absent
}

// isMissing reports whether err says that there is no object of that name, rather than that its kind
// is not served (at that version, now).
func isMissing(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name == name && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

func (c *collector) client(k kind, namespace string) metadata.ResourceInterface {
	r := c.clients.metadata.Resource(k.GroupVersionResource)
	if k.Namespaced {
		return r.Namespace(namespace)
	}
	return r
}

// live reads an object of the graph, at the version its kind is followed at now; nil
// means that it is gone.
func (c *collector) live(ctx context.Context, id objectID) (*metav1.PartialObjectMetadata, metadata.ResourceInterface, error) {
	k, ok := c.kinds.find(id.kind.GroupVersion().String(), id.kind.Kind)
	if !ok {
		return nil, nil, notServed(id.kind.groupKind())
	}
	client := c.client(k, id.namespace)
	m, err := client.Get(ctx, id.name, metav1.GetOptions{})
	if isMissing(err, id.name) || err == nil && m.UID != id.uid {
		c.gone(id.uid)
		return nil, nil, nil
	}
	return m, client, err
}

// attempt works on an object, or leaves that until the kinds it takes are there.
func (c *collector) attempt(ctx context.Context, id objectID) error {
	err := c.attemptToDelete(ctx, id)
	var absent notServed
	switch {
	case errors.Is(err, errOutOfReach):
		klog.FromContext(ctx).V(1).Info("will not collect", "object", id, "reason", err.Error())
		return nil
	case !errors.As(err, &absent):
		return err
	}
	c.parkedAttempts.add(schema.GroupKind(absent), id)
	if c.kinds.follows(schema.GroupKind(absent)) {
		c.unpark(schema.GroupKind(absent))
	}
	return nil
}

// attemptToDelete deletes an object if none of its owners exists, and takes references
// to lost owners off it if one does.
func (c *collector) attemptToDelete(ctx context.Context, id objectID) error {
	m, client, err := c.live(ctx, id)
	if m == nil || err != nil || len(m.OwnerReferences) == 0 {
		return err
	}
	if m.DeletionTimestamp != nil {
		if hasFinalizer(m, metav1.FinalizerDeleteDependents) {
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
	switch dependents, _ := c.graph.dependentsOf(id.uid); {
	case len(waiting) > 0 && len(dependents) > 0:
		if unblocked := withoutBlocking(m.OwnerReferences); unblocked != nil && c.graph.inCircle(id.uid) {
			// Two that wait for each other would wait for ever.
			if err := patchMeta(ctx, client, m, "ownerReferences", unblocked); err != nil {
				return err
			}
			c.attempts.Add(id)
			return nil
		}
		policy = metav1.DeletePropagationForeground
	case hasFinalizer(m, metav1.FinalizerOrphanDependents):
		policy = metav1.DeletePropagationOrphan
	case hasFinalizer(m, metav1.FinalizerDeleteDependents):
		policy = metav1.DeletePropagationForeground
	}
	return ignoreNotFound(client.Delete(ctx, id.name, metav1.DeleteOptions{
		PropagationPolicy: &policy,
		Preconditions:     &metav1.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion},
	}))
}

// withoutBlocking returns the references with none that blocks, nil if that is how they are.
func withoutBlocking(refs []metav1.OwnerReference) []metav1.OwnerReference {
	if !slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return isTrue(r.BlockOwnerDeletion) }) {
		return nil
	}
	free := slices.Clone(refs)
	for i := range free {
		free[i].BlockOwnerDeletion = nil
	}
	return free
}

// classifyReferences reads every owner: those that keep the object alive, those that are
// gone, and those that wait for it to be deleted.
func (c *collector) classifyReferences(ctx context.Context, m *metav1.PartialObjectMetadata) (solid, dangling, waiting []metav1.OwnerReference, err error) {
	for _, ref := range m.OwnerReferences {
		_, owner, err := c.lookUp(ctx, m.Namespace, ref)
		switch {
		case err != nil:
			return nil, nil, nil, err
		case owner == nil:
			dangling = append(dangling, ref)
		case owner.DeletionTimestamp != nil && hasFinalizer(owner, metav1.FinalizerDeleteDependents):
			waiting = append(waiting, ref)
		default:
			solid = append(solid, ref)
		}
	}
	return solid, dangling, waiting, nil
}

// finish takes the collector's finalizers off an object whose dependents are gone or let go.
func (c *collector) finish(ctx context.Context, id objectID) error {
	m, client, err := c.live(ctx, id)
	var absent notServed
	if errors.As(err, &absent) {
		return nil // it is listed again when its kind is
	}
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
		if err := c.orphanDependents(ctx, id, dependents); err != nil {
			return err
		}
		return dropFinalizer(ctx, client, m, metav1.FinalizerOrphanDependents)
	}
	for _, d := range dependents {
		c.attempts.Add(d)
	}
	if len(blocking) > 0 {
		return nil // the last of them to go brings the owner back here
	}
	return dropFinalizer(ctx, client, m, metav1.FinalizerDeleteDependents)
}

// orphanDependents takes the reference to owner off each dependent.
func (c *collector) orphanDependents(ctx context.Context, owner objectID, dependents []objectID) error {
	for _, d := range dependents {
		m, client, err := c.live(ctx, d)
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

func dropOwners(ctx context.Context, client metadata.ResourceInterface, m *metav1.PartialObjectMetadata, drop []metav1.OwnerReference) error {
	kept := []metav1.OwnerReference{}
	for _, ref := range m.OwnerReferences {
		if !slices.ContainsFunc(drop, func(r metav1.OwnerReference) bool { return r.UID == ref.UID }) {
			kept = append(kept, ref)
		}
	}
	return patchMeta(ctx, client, m, "ownerReferences", kept)
}

func dropFinalizer(ctx context.Context, client metadata.ResourceInterface, m *metav1.PartialObjectMetadata, name string) error {
	kept := []string{}
	for _, f := range m.Finalizers {
		if f != name {
			kept = append(kept, f)
		}
	}
	return patchMeta(ctx, client, m, "finalizers", kept)
}

// patchMeta replaces one field of metadata, provided the object is still as read.
func patchMeta(ctx context.Context, client metadata.ResourceInterface, m *metav1.PartialObjectMetadata, field string, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": m.UID, "resourceVersion": m.ResourceVersion, field: value,
	}})
	if err != nil {
		return err
	}
	_, err = client.Patch(ctx, m.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return ignoreNotFound(err)
}
