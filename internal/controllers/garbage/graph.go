package garbage

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
)

// graph records owners and dependents. To save memory, it contains only objects that own another object, have an
// owner, or wait for the deletion of their dependents.
type graph struct {
	mu    sync.Mutex
	nodes map[types.UID]*node
}

// node is an object in the graph. The graph's lock guards its fields.
type node struct {
	id              objectID
	resourceVersion uint64
	owners          []metav1.OwnerReference
	dependents      map[types.UID]*node
	// observed is false while the object is known only from an owner reference.
	observed   bool
	foreground bool // the object waits for the deletion of its blocking dependents
	orphan     bool // the object waits until its dependents are orphaned
}

// objectID identifies an object.
type objectID struct {
	kind            informer.Kind
	namespace, name string
	uid             types.UID
}

// effect describes the work that is necessary after a change of the graph.
type effect struct {
	unknownOwners     []metav1.OwnerReference // owners to look up
	toCheck           []objectID              // objects that may have to be deleted
	waitingOwners     []objectID              // owners that have lost a dependent for which they waited
	finishDeletion    bool                    // the changed object is being deleted and waits for its dependents
	invalidReferences []invalidReference      // references to owners in another namespace
}

// invalidReference is a reference of an object to an owner in another namespace.
type invalidReference struct {
	from objectID
	to   metav1.OwnerReference
}

func newGraph() *graph { return &graph{nodes: map[types.UID]*node{}} }

// isRelevant reports whether the graph must contain an object even if the object has no dependents.
func isRelevant(m *metav1.PartialObjectMetadata) bool {
	return len(m.OwnerReferences) > 0 || isTerminatingWith(m, metav1.FinalizerDeleteDependents) ||
		isTerminatingWith(m, metav1.FinalizerOrphanDependents)
}

// isTerminatingWith reports whether an object is being deleted and has the given finalizer.
func isTerminatingWith(m *metav1.PartialObjectMetadata, finalizer string) bool {
	return m.DeletionTimestamp != nil && slices.Contains(m.Finalizers, finalizer)
}

// contains reports whether the graph contains an object.
func (g *graph) contains(uid types.UID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.nodes[uid] != nil
}

// put records the state m of an object, unless the graph has a newer state. The graph keeps a reference to m's owner
// references.
func (g *graph) put(k informer.Kind, m *metav1.PartialObjectMetadata) (e effect) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, version := g.nodes[m.UID], informer.ResourceVersion(m)
	if n == nil {
		if !isRelevant(m) {
			return e
		}
		n = &node{}
		g.nodes[m.UID] = n
	} else if n.observed && n.resourceVersion > version {
		return e
	}
	first := !n.observed
	n.id, n.observed, n.resourceVersion = objectID{k, m.Namespace, m.Name, m.UID}, true, version
	n.foreground = isTerminatingWith(m, metav1.FinalizerDeleteDependents)
	n.orphan = isTerminatingWith(m, metav1.FinalizerOrphanDependents)
	e.finishDeletion = n.foreground || n.orphan
	if first {
		n.addMismatches(&e)
	}
	if !sameOwners(n.owners, m.OwnerReferences) {
		g.relink(n, m.OwnerReferences, &e)
	}
	if !isRelevant(m) && len(n.dependents) == 0 {
		delete(g.nodes, m.UID)
	}
	return e
}

// addMismatches adds to e the dependents whose reference has n's UID but not n's kind, name or namespace.
func (n *node) addMismatches(e *effect) {
	for _, d := range n.dependents {
		for _, ref := range d.owners {
			if ref.UID != n.id.uid || n.matches(ref, d.id.namespace) {
				continue
			}
			e.toCheck = append(e.toCheck, d.id)
			if !n.canOwnIn(d.id.namespace) {
				e.invalidReferences = append(e.invalidReferences, invalidReference{d.id, ref})
			}
		}
	}
}

// canOwnIn reports whether n can own an object in a namespace. The namespace of a cluster-scoped object is "".
func (n *node) canOwnIn(namespace string) bool {
	return n.id.namespace == "" || n.id.namespace == namespace
}

// matches reports whether n has the group, kind and name in ref. If n is namespaced, n must also be in the given
// namespace.
func (n *node) matches(ref metav1.OwnerReference, namespace string) bool {
	id := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
	return id == n.id.kind.GroupKind() && ref.Name == n.id.name &&
		(!n.id.kind.Namespaced || n.id.namespace == namespace)
}

func (g *graph) relink(n *node, owners []metav1.OwnerReference, e *effect) {
	old, mismatched := n.owners, false
	g.unlink(n)
	n.owners = owners
	for _, ref := range owners {
		owner := g.nodes[ref.UID]
		if owner == nil {
			owner = &node{id: objectID{name: ref.Name, uid: ref.UID}}
			g.nodes[ref.UID] = owner
		}
		owner.addDependent(n)
		switch {
		case !owner.observed:
			e.unknownOwners = append(e.unknownOwners, ref)
		case owner.foreground || !owner.matches(ref, n.id.namespace):
			e.toCheck = append(e.toCheck, n.id)
			if !owner.canOwnIn(n.id.namespace) && !mismatched { // upstream reports only the first mismatched reference
				e.invalidReferences = append(e.invalidReferences, invalidReference{n.id, ref})
			}
			mismatched = mismatched || !owner.matches(ref, n.id.namespace)
		}
	}
	for _, ref := range old {
		if owner := g.nodes[ref.UID]; owner != nil && owner.foreground && !blocks(owners, ref.UID) {
			e.waitingOwners = append(e.waitingOwners, owner.id)
		}
	}
}

// referencesTo returns the references to an owner from the objects in a namespace. If namespace is "", it returns the
// references from cluster-scoped objects.
func (g *graph) referencesTo(owner types.UID, namespace string) (all []invalidReference) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[owner]
	if n == nil {
		return nil
	}
	for _, d := range n.dependents {
		for _, ref := range d.owners {
			if ref.UID == owner && d.id.namespace == namespace {
				all = append(all, invalidReference{d.id, ref})
			}
		}
	}
	return all
}

func (n *node) addDependent(dependent *node) {
	if n.dependents == nil {
		n.dependents = map[types.UID]*node{}
	}
	n.dependents[dependent.id.uid] = dependent
}

func (g *graph) unlink(n *node) {
	for _, ref := range n.owners {
		owner := g.nodes[ref.UID]
		if owner == nil {
			continue
		}
		delete(owner.dependents, n.id.uid)
		if len(owner.dependents) == 0 && len(owner.owners) == 0 && !owner.foreground && !owner.orphan {
			delete(g.nodes, ref.UID)
		}
	}
	n.owners = nil
}

// remove removes a deleted object. It returns the dependents of the object. It also returns the owners of the object
// that wait for their dependents.
func (g *graph) remove(uid types.UID) (dependents, waiting []objectID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return nil, nil
	}
	for _, d := range n.dependents {
		dependents = append(dependents, d.id)
	}
	waiting = g.detach(n)
	delete(g.nodes, uid)
	return dependents, waiting
}

// detach unlinks n from its owners, and returns the owners that wait for their dependents.
func (g *graph) detach(n *node) (waiting []objectID) {
	for _, ref := range n.owners {
		if owner := g.nodes[ref.UID]; owner != nil && owner.foreground {
			waiting = append(waiting, owner.id)
		}
	}
	g.unlink(n)
	return waiting
}

// stopKind marks the objects of a kind as unobserved. The kind is no longer watched, but its objects may still be
// stored, so they keep their dependents. It returns the owners that wait for the deletion of these objects.
func (g *graph) stopKind(k informer.Kind) (waiting []objectID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid, n := range g.nodes {
		if !n.observed || n.id.kind.GroupKind() != k.GroupKind() {
			continue
		}
		waiting = append(waiting, g.detach(n)...)
		n.observed, n.foreground, n.orphan = false, false, false
		if len(n.dependents) == 0 {
			delete(g.nodes, uid)
		}
	}
	return waiting
}

// dependentsOf returns all dependents of an object, and the dependents that block its foreground deletion. someWait
// reports whether one of the dependents waits for its own dependents. The object itself may be among the latter.
func (g *graph) dependentsOf(uid types.UID) (all, blocking []objectID, someWait bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return nil, nil, false
	}
	for _, d := range n.dependents {
		all = append(all, d.id)
		if blocks(d.owners, uid) {
			blocking = append(blocking, d.id)
		}
		someWait = someWait || d.foreground
	}
	return all, blocking, someWait
}

// missing returns the observed objects of a kind that are not in the list present. It skips objects whose resource
// version is greater than version.
func (g *graph) missing(k informer.Kind, present []*metav1.PartialObjectMetadata, version uint64) (absent []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	exists := make(map[types.UID]bool, len(present))
	for _, m := range present {
		exists[m.UID] = true
	}
	for uid, n := range g.nodes {
		if n.observed && n.resourceVersion <= version && n.id.kind.GroupKind() == k.GroupKind() && !exists[uid] {
			absent = append(absent, uid)
		}
	}
	return absent
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.OwnerReference) bool {
		return a.UID == b.UID && a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name &&
			isBlocking(a) == isBlocking(b)
	})
}

// blocks reports whether one of the references blocks the foreground deletion of the owner uid.
func blocks(owners []metav1.OwnerReference, uid types.UID) bool {
	return slices.ContainsFunc(owners, func(ref metav1.OwnerReference) bool {
		return ref.UID == uid && isBlocking(ref)
	})
}

func isBlocking(ref metav1.OwnerReference) bool { return ptr.Deref(ref.BlockOwnerDeletion, false) }
