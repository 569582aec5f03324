package control

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// graph is who owns whom: only objects that own, are owned, or wait for their
// dependents are in it, so that everything else costs nothing.
type graph struct {
	mu    sync.Mutex
	nodes map[types.UID]*node
}

// node is one object. Fields are read and written under the graph's lock.
type node struct {
	id         objectID
	owners     []metav1.OwnerReference
	dependents map[types.UID]*node
	// seen is false while only an owner reference speaks of the object.
	seen       bool
	deleting   bool
	foreground bool // waits for its blocking dependents
	orphan     bool // waits for its dependents to be let go
}

// objectID names an object well enough to find it again.
type objectID struct {
	kind            kind
	namespace, name string
	uid             types.UID
}

func newGraph() *graph { return &graph{nodes: map[types.UID]*node{}} }

// matters reports whether an object has to be in the graph for its own sake.
func matters(m *metav1.PartialObjectMetadata) bool {
	return len(m.OwnerReferences) > 0 || m.DeletionTimestamp != nil && len(m.Finalizers) > 0
}

// put records an object as it is now. It returns the node (nil if it does not
// matter), whether its owners changed, and the owners that were never heard of.
func (g *graph) put(k kind, m *metav1.PartialObjectMetadata) (n *node, ownersChanged bool, unknown []*node) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n = g.nodes[m.UID]
	if n == nil {
		if !matters(m) {
			return nil, false, nil
		}
		n = &node{dependents: map[types.UID]*node{}}
		g.nodes[m.UID] = n
	}
	ownersChanged = !sameOwners(n.owners, m.OwnerReferences)
	n.id, n.seen = objectID{k, m.Namespace, m.Name, m.UID}, true
	n.deleting = m.DeletionTimestamp != nil
	n.foreground = n.deleting && hasFinalizer(m, metav1.FinalizerDeleteDependents)
	n.orphan = n.deleting && hasFinalizer(m, metav1.FinalizerOrphanDependents)
	if ownersChanged {
		unknown = g.relink(n, m.OwnerReferences)
	}
	if !matters(m) && len(n.dependents) == 0 {
		delete(g.nodes, m.UID)
	}
	return n, ownersChanged, unknown
}

func (g *graph) relink(n *node, owners []metav1.OwnerReference) (unknown []*node) {
	g.unlink(n)
	n.owners = owners
	for _, ref := range owners {
		owner := g.nodes[ref.UID]
		if owner == nil {
			owner = &node{dependents: map[types.UID]*node{}, id: objectID{name: ref.Name, uid: ref.UID}}
			g.nodes[ref.UID] = owner
			unknown = append(unknown, owner)
		}
		owner.dependents[n.id.uid] = n
	}
	return unknown
}

func (g *graph) unlink(n *node) {
	for _, ref := range n.owners {
		owner := g.nodes[ref.UID]
		if owner == nil {
			continue
		}
		delete(owner.dependents, n.id.uid)
		if len(owner.dependents) == 0 && len(owner.owners) == 0 && !owner.deleting {
			delete(g.nodes, ref.UID)
		}
	}
}

// remove forgets an object that is gone. It returns its dependents, and the
// owners that wait for theirs.
func (g *graph) remove(uid types.UID) (dependents, waiting []objectID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return nil, nil
	}
	for _, ref := range n.owners {
		if owner := g.nodes[ref.UID]; owner != nil && owner.foreground {
			waiting = append(waiting, owner.id)
		}
	}
	g.unlink(n)
	delete(g.nodes, uid)
	for _, d := range n.dependents {
		dependents = append(dependents, d.id)
	}
	return dependents, waiting
}

// dependentsOf returns the dependents of an object, and of those the ones whose reference
// blocks its foreground deletion.
func (g *graph) dependentsOf(uid types.UID) (all, blocking []objectID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return nil, nil
	}
	for _, d := range n.dependents {
		all = append(all, d.id)
		for _, ref := range d.owners {
			if ref.UID == uid && ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion {
				blocking = append(blocking, d.id)
			}
		}
	}
	return all, blocking
}

// missing returns the seen nodes of a kind that are not among the given objects.
func (g *graph) missing(k kind, present []*metav1.PartialObjectMetadata) (gone []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	there := make(map[types.UID]bool, len(present))
	for _, m := range present {
		there[m.UID] = true
	}
	for uid, n := range g.nodes {
		if n.seen && n.id.kind.groupKind() == k.groupKind() && !there[uid] {
			gone = append(gone, uid)
		}
	}
	return gone
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].UID != b[i].UID || a[i].APIVersion != b[i].APIVersion || a[i].Kind != b[i].Kind || a[i].Name != b[i].Name ||
			isTrue(a[i].BlockOwnerDeletion) != isTrue(b[i].BlockOwnerDeletion) {
			return false
		}
	}
	return true
}

func isTrue(b *bool) bool { return b != nil && *b }

func hasFinalizer(m *metav1.PartialObjectMetadata, name string) bool {
	for _, f := range m.Finalizers {
		if f == name {
			return true
		}
	}
	return false
}
