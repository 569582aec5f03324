package capacity

import (
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	v1helper "k8s.io/kubernetes/pkg/apis/core/v1/helper"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// fits refuses a Pod for which a node has no room, as of head or later. What a node does not report, nobody is held to. A Pod that is on
// a node by then has been bound by somebody else, and would count twice: this binding starts over, and is told so.
func (x *NodeUsage) fits(head *storage.Snapshot, was *storage.Record, pod, node string, want *load) error {
	has := allocatable(head.Get(nodes + node))
	if len(has) == 0 {
		return nil
	}
	x.mu.Lock()
	x.refresh()
	var lacks []lack
	if x.pods[was.Key] == nil {
		lacks = x.on(node).lacks(want, has)
	}
	x.mu.Unlock()
	lacks = slices.DeleteFunc(lacks, func(l lack) bool { return l.has == 0 && deviceClass(head, l.of) })
	if len(lacks) == 0 {
		return nil
	}
	reasons := make([]string, len(lacks))
	for i, l := range lacks {
		reasons[i] = l.reason
	}
	return apierrors.NewConflict(corev1.Resource("pods/binding"), pod, fmt.Errorf("node %q has no room: %s", node, strings.Join(reasons, ", ")))
}

// allocatable is what a Node reports to have; nil if it reports nothing, or is not there.
func allocatable(rec *storage.Record) corev1.ResourceList {
	if rec == nil {
		return nil
	}
	raw, _ := object.Field(rec.Value, "status", "allocatable")
	return reader{object.NewCursor(raw)}.amounts()
}

// occupants are the Pods on a node.
type occupants map[*placed]bool

// on is who is on a node. The caller holds x.mu.
func (x *NodeUsage) on(node string) occupants {
	all := x.nodes[node]
	for p := range all {
		if p.rec != nil {
			p.load, p.rec = loadOf(p.rec.Value), nil
		}
	}
	return all
}

// lack is what there is too little of.
type lack struct {
	of     corev1.ResourceName // "" of a port
	has    int64               // of it in all
	reason string
}

// lacks says what of a load the node has no room for.
func (all occupants) lacks(want *load, has corev1.ResourceList) (lacks []lack) {
	for _, r := range want.requests {
		quantity, reported := has[r.of]
		if !reported {
			continue
		}
		total := amountOf(r.of, quantity)
		if left := total - all.sum(r.of); r.amount > left {
			lacks = append(lacks, lack{r.of, total, fmt.Sprintf("%s: %s requested, %s left", r.of, written(r.of, r.amount, quantity), written(r.of, max(left, 0), quantity))})
		}
	}
	for _, port := range want.ports {
		for p := range all {
			if slices.ContainsFunc(p.load.ports, port.clashes) {
				lacks = append(lacks, lack{has: 1, reason: "host port " + port.String() + " is taken"})
				break
			}
		}
	}
	return lacks
}

// sum is how much of a resource they have all together.
func (all occupants) sum(name corev1.ResourceName) (sum int64) {
	for p := range all {
		amount := p.load.of(name)
		if amount > math.MaxInt64-sum {
			return math.MaxInt64
		}
		sum += amount
	}
	return sum
}

// deviceClass is whether the devices of a class count as a resource, of which a node that reports none may have some.
func deviceClass(head *storage.Snapshot, name corev1.ResourceName) bool {
	if !v1helper.IsExtendedResourceName(name) {
		return false
	}
	for rec := range head.Walk(classes, "") {
		if raw, _ := object.Field(rec.Value, "spec", "extendedResourceName"); unquoted(raw) == string(name) {
			return true
		}
	}
	return false
}

// amountOf is a quantity in the unit that the scheduler counts a resource in. What is too much to be counted is the most that can be.
func amountOf(name corev1.ResourceName, q resource.Quantity) int64 {
	unit, in := int64(1), q.Value
	if name == corev1.ResourceCPU {
		unit, in = 1000, q.MilliValue
	}
	if q.CmpInt64(math.MaxInt64/unit) >= 0 {
		return math.MaxInt64
	}
	return in()
}

// written is an amount in the form that the node's own has.
func written(name corev1.ResourceName, amount int64, like resource.Quantity) string {
	if name == corev1.ResourceCPU {
		return resource.NewMilliQuantity(amount, like.Format).String()
	}
	return resource.NewQuantity(amount, like.Format).String()
}
