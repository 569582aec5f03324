package garbage

import (
	"fmt"
	"math/rand/v2"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
)

var things = informer.Kind{
	GroupVersionResource: schema.GroupVersionResource{Group: "g", Version: "v1", Resource: "things"},
	Kind:                 "Thing", Namespaced: true,
}

// thing returns an object whose UID is its name, with owners of its own kind. The prefix "!" of an owner's name sets
// blockOwnerDeletion.
func thing(name string, version int, owners ...string) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{}
	m.Name, m.UID, m.Namespace, m.ResourceVersion = name, types.UID(name), "n", fmt.Sprint(version)
	for _, o := range owners {
		ref := metav1.OwnerReference{APIVersion: "g/v1", Kind: "Thing", BlockOwnerDeletion: new(o[0] == '!')}
		if o[0] == '!' {
			o = o[1:]
		}
		ref.Name, ref.UID = o, types.UID(o)
		m.OwnerReferences = append(m.OwnerReferences, ref)
	}
	return m
}

func terminating(m *metav1.PartialObjectMetadata, finalizer string) *metav1.PartialObjectMetadata {
	m.DeletionTimestamp, m.Finalizers = &metav1.Time{}, []string{finalizer}
	return m
}

func names(ids []objectID) string {
	list := map[string]bool{}
	for _, id := range ids {
		list[id.name] = true
	}
	return fmt.Sprint(list)
}

// TestGraphKeepsOnlyRelevantObjects checks that the graph contains only owners and dependents. (CRD-066)
func TestGraphKeepsOnlyRelevantObjects(t *testing.T) {
	g := newGraph()
	g.put(things, thing("plain", 1))
	if len(g.nodes) != 0 {
		t.Error("the graph contains an object without owners and dependents")
	}
	e := g.put(things, thing("child", 2, "owner"))
	if len(e.unknownOwners) != 1 || len(g.nodes) != 2 {
		t.Errorf("unknown owners %v, %d nodes", e.unknownOwners, len(g.nodes))
	}
	g.put(things, thing("owner", 1))
	if e := g.put(things, thing("second", 3, "owner")); len(e.unknownOwners) != 0 || len(e.toCheck) != 0 {
		t.Errorf("an observed owner is looked up again: %+v", e)
	}
	g.put(things, thing("child", 4))
	g.put(things, thing("second", 4))
	if len(g.nodes) != 0 {
		t.Errorf("got %d nodes without any owner references, want none", len(g.nodes))
	}
}

// TestGraphIgnoresOlderStates checks that put ignores a state that is older than the recorded one. (CRD-066)
func TestGraphIgnoresOlderStates(t *testing.T) {
	g := newGraph()
	g.put(things, thing("child", 1, "owner"))
	g.put(things, terminating(thing("owner", 5), metav1.FinalizerDeleteDependents))
	g.put(things, thing("owner", 3))
	if !g.nodes["owner"].foreground {
		t.Error("an older state of the owner replaced a newer one")
	}
	if gone := g.missing(things, nil, 4); len(gone) != 1 || gone[0] != "child" {
		t.Errorf("missing at version 4: got %v, want [child]", gone)
	}
}

// TestGraphForeground checks the effects of changes while an owner is deleted in the foreground. (CRD-066)
func TestGraphForeground(t *testing.T) {
	g := newGraph()
	g.put(things, thing("a", 1, "!owner"))
	g.put(things, thing("b", 2, "owner"))
	g.put(things, thing("c", 3, "!owner"))
	if e := g.put(things, terminating(thing("owner", 4), metav1.FinalizerDeleteDependents)); !e.finishDeletion {
		t.Error("the deletion of the owner is not queued")
	}
	all, blocking, _ := g.dependentsOf("owner")
	if names(all) != "map[a:true b:true c:true]" || names(blocking) != "map[a:true c:true]" {
		t.Errorf("dependents %v, blocking %v", names(all), names(blocking))
	}
	if e := g.put(things, thing("d", 5, "owner")); names(e.toCheck) != "map[d:true]" {
		t.Errorf("a new dependent of a deleted owner: got %+v, want toCheck d", e)
	}
	if e := g.put(things, thing("c", 6, "owner")); names(e.waitingOwners) != "map[owner:true]" {
		t.Errorf("a dependent that no longer blocks: got %+v, want waitingOwners owner", e)
	}
	if _, waiting := g.remove("a"); names(waiting) != "map[owner:true]" {
		t.Errorf("got waiting owners %v, want owner", waiting)
	}
	if _, blocking, _ := g.dependentsOf("owner"); len(blocking) != 0 {
		t.Errorf("still blocking: %v", blocking)
	}
}

// TestGraphMismatchedReferences checks that a dependent is checked again if its reference has the UID of the owner,
// but another name or namespace. (CRD-066)
func TestGraphMismatchedReferences(t *testing.T) {
	far := thing("far", 1, "owner")
	far.Namespace = "elsewhere"
	misnamed := thing("misnamed", 2, "owner")
	misnamed.OwnerReferences[0].Name = "another"
	otherVersion := thing("right", 3, "owner")
	otherVersion.OwnerReferences[0].APIVersion = "g/v2"
	for _, ownerFirst := range []bool{true, false} {
		g := newGraph()
		g.put(things, thing("right too", 4, "owner"))
		if ownerFirst {
			g.put(things, thing("owner", 5))
		}
		var doubtful []objectID
		for _, m := range []*metav1.PartialObjectMetadata{far, misnamed, otherVersion} {
			doubtful = append(doubtful, g.put(things, m).toCheck...)
		}
		doubtful = append(doubtful, g.put(things, thing("owner", 6)).toCheck...)
		if names(doubtful) != "map[far:true misnamed:true]" {
			t.Errorf("owner first %v: doubtful %v", ownerFirst, names(doubtful))
		}
	}
}

// TestGraphStopKind checks that objects of a kind that is no longer watched keep their dependents. (CRD-066)
func TestGraphStopKind(t *testing.T) {
	others := informer.Kind{
		GroupVersionResource: schema.GroupVersionResource{Group: "o", Version: "v1", Resource: "others"},
		Kind:                 "Other", Namespaced: true,
	}
	g := newGraph()
	g.put(others, thing("child", 1, "owner"))
	g.put(things, thing("owner", 2))
	g.put(others, terminating(thing("waits", 3), metav1.FinalizerDeleteDependents))
	g.put(things, thing("sub", 4, "!waits"))
	if waiting := g.stopKind(things); names(waiting) != "map[waits:true]" {
		t.Errorf("got waiting owners %v, want waits", names(waiting))
	}
	if e := g.put(others, thing("child2", 5, "owner")); len(e.unknownOwners) != 1 {
		t.Errorf("the owner of the stopped kind is not looked up: %+v", e)
	}
	g.put(things, thing("owner", 2))
	if dependents, _ := g.remove("owner"); names(dependents) != "map[child:true child2:true]" {
		t.Errorf("got dependents %v, want child and child2", names(dependents))
	}
}

// TestGraphRandom checks owners and dependents after random changes, and that the graph is empty after all objects are
// removed. (CRD-066)
func TestGraphRandom(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		g, now := newGraph(), map[string]*metav1.PartialObjectMetadata{}
		var lives [12]int // how often the object was created again, each time with a new UID
		pick := func() (int, string) { i := r.IntN(len(lives)); return i, fmt.Sprint("o", i, ".", lives[i]) }
		for step := range 200 {
			i, name := pick()
			if r.IntN(4) == 0 {
				g.remove(types.UID(name))
				delete(now, name)
				lives[i]++
				continue
			}
			var owners []string
			for range r.IntN(3) {
				_, owner := pick()
				owners = append(owners, owner)
			}
			m := thing(name, step+1, owners...)
			if r.IntN(4) == 0 {
				m = terminating(m, metav1.FinalizerDeleteDependents)
			}
			g.put(things, m)
			now[name] = m
		}
		for name, m := range now {
			for _, ref := range m.OwnerReferences {
				if n := g.nodes[m.UID]; n == nil || !hasOwner(n.owners, ref.Name) {
					t.Fatalf("seed %d: %s lacks its owner %s", seed, name, ref.Name)
				}
				if owner := g.nodes[ref.UID]; now[ref.Name] != nil && (owner == nil || owner.dependents[m.UID] == nil) {
					t.Fatalf("seed %d: %s lacks its dependent %s", seed, ref.Name, name)
				}
			}
		}
		for name := range now {
			g.remove(types.UID(name))
		}
		for uid, n := range g.nodes {
			if len(n.dependents) == 0 {
				t.Fatalf("seed %d: %s remains without dependents", seed, uid)
			}
			for _, d := range n.dependents {
				if _, there := now[d.id.name]; there {
					t.Fatalf("seed %d: %s has the removed dependent %s", seed, uid, d.id.name)
				}
			}
		}
	}
}

func hasOwner(owners []metav1.OwnerReference, name string) bool {
	for _, ref := range owners {
		if ref.Name == name {
			return true
		}
	}
	return false
}

// TestAbsentOwnersAreBounded checks that the number of remembered deleted owners is limited. (CRD-066)
func TestAbsentOwnersAreBounded(t *testing.T) {
	c := New(nil, nil, &fakeKinds{})
	for i := range 3 * maxAbsentOwners {
		c.absentOwners.Add(types.UID(fmt.Sprint(i)), nil)
		c.absentOwners.Add(types.UID(fmt.Sprint(i)), nil)
	}
	_, first := c.absentOwners.Get(types.UID("0"))
	_, last := c.absentOwners.Get(types.UID(fmt.Sprint(3*maxAbsentOwners - 1)))
	if c.absentOwners.Len() != maxAbsentOwners || first || !last {
		t.Errorf("got %d absent owners, want the last %d", c.absentOwners.Len(), maxAbsentOwners)
	}
}

// BenchmarkGraph measures recording an object without owners and one with an owner.
func BenchmarkGraph(b *testing.B) {
	for name, m := range map[string]*metav1.PartialObjectMetadata{
		"plain": thing("p", 1), "owned": thing("o", 1, "owner"),
	} {
		b.Run(name, func(b *testing.B) {
			g := newGraph()
			g.put(things, thing("keep", 1, "owner"))
			b.ReportAllocs()
			for b.Loop() {
				g.put(things, m)
				g.remove(m.UID)
			}
		})
	}
}
