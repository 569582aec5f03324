// Package capacity holds bindings to what nodes have: several schedulers, each of which knows of the others only what it has been told so
// far, do not overcommit a node. What is on a node is counted as the scheduler counts it. It knows what is stored, and asks for
// nothing else.
package capacity

import (
	"sync"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Where things are stored. Of each node that Pods have come to there is a key of no kind, its ledger: every write that adds to what is on
// the node writes it. So who has judged by its revision is too late if there was such a write since.
const (
	pods    = "/registry/pods/"
	nodes   = "/registry/minions/"
	classes = "/registry/deviceclasses/"
	ledgers = "/registry/nodeledgers/"
)

// NodeUsage is what is on each node at the head of a store.
type NodeUsage struct {
	head func() *storage.Snapshot

	mu    sync.Mutex
	seen  *storage.Snapshot  // the Pods alone: where nothing is bound for long, all else would be kept as it was
	pods  map[string]*placed // that are on a node, by storage key
	nodes map[string]map[*placed]bool
}

// placed is a Pod on a node.
type placed struct {
	node string
	rec  *storage.Record // what its load is yet to be made of; nil: it has been. Most of what is written of a Pod nobody asks about.
	load load
}

// New returns the Ledger of the state that head returns.
func New(head func() *storage.Snapshot) *NodeUsage {
	return &NodeUsage{head: head, seen: new(storage.Snapshot), pods: map[string]*placed{}, nodes: map[string]map[*placed]bool{}}
}

// refresh brings it to the head of the store. The caller holds x.mu.
func (x *NodeUsage) refresh() {
	head := x.head()
	for was, is := range head.Since(x.seen, pods) {
		x.replace(was, is)
	}
	x.seen = head.Part(pods)
}

func (x *NodeUsage) replace(was, is *storage.Record) {
	key, node := "", ""
	if is != nil {
		raw, _ := object.Field(is.Value, "spec", "nodeName")
		key, node = is.Key, unquoted(raw)
	} else {
		key = was.Key
	}
	p := x.pods[key]
	if p != nil && p.node != node { // another one of its name may be elsewhere
		if delete(x.nodes[p.node], p); len(x.nodes[p.node]) == 0 {
			delete(x.nodes, p.node)
		}
		delete(x.pods, key)
		p = nil
	}
	if node == "" {
		return
	}
	if p == nil {
		p = &placed{node: node}
		x.pods[key] = p
		if x.nodes[node] == nil {
			x.nodes[node] = map[*placed]bool{}
		}
		x.nodes[node][p] = true
	}
	p.rec = is
}

// unquoted is the text of a name, which has nothing that JSON escapes.
func unquoted(raw []byte) string {
	if len(raw) < 2 {
		return ""
	}
	return string(raw[1 : len(raw)-1])
}

// Pod says what the write of a Pod enters: nothing, unless it adds to what is on a node. A binding is refused if the node has no room
// for it. All else is the kubelet's to admit: what is created with a node, a static Pod above all, and what is resized.
func (x *NodeUsage) Pod(was *storage.Record, old, obj object.Tree, stored []byte) (resource.ExtraWrites, error) {
	node := nodeName(obj)
	if node == "" {
		return resource.ExtraWrites{}, nil
	}
	binds := old != nil && nodeName(old) == ""
	if old != nil && !binds && takesTheSame(old, obj) {
		return resource.ExtraWrites{}, nil
	}
	now, before := loadOf(stored), load{}
	if old != nil && !binds {
		before = loadOf(was.Value)
	}
	if !now.exceeds(&before) {
		return resource.ExtraWrites{}, nil
	}
	head := x.head() // what follows looks at no older state
	if binds {
		if err := x.fits(head, was, object.Name(obj), node, &now); err != nil {
			return resource.ExtraWrites{}, err
		}
	}
	rec := head.Get(nodes + node)
	entry := resource.ExtraWrites{Guards: []storage.Guard{{Key: nodes + node, Revision: revision(rec)}}}
	if rec != nil { // else it is the guard that tells who judges by a node that comes
		entry.Writes = []storage.Write{{Key: ledgers + node, Value: []byte("{}"), Expected: revision(head.Get(ledgers + node))}}
	}
	return entry, nil
}

// Node says what the write of a Node enters: its ledger goes with it. Nobody has judged by that alone.
func (x *NodeUsage) Node(was *storage.Record, _, obj object.Tree, _ []byte) (entry resource.ExtraWrites, _ error) {
	if obj != nil {
		return entry, nil
	}
	if rec := x.head().Get(ledgers + was.Key[len(nodes):]); rec != nil {
		entry.Writes = []storage.Write{{Key: rec.Key, Expected: rec.Modified}}
	}
	return entry, nil
}

func revision(rec *storage.Record) int64 {
	if rec == nil {
		return 0
	}
	return rec.Modified
}
