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

// checkFits returns a Conflict if the node lacks the capacity for a Pod whose load is want. It uses the state at head
// or a later state. Resources that the node does not report are not checked. If another client has bound the Pod in
// that state, the capacity is not checked, because this binding fails with a conflict when it is committed.
func (x *NodeUsage) checkFits(head *storage.Snapshot, rec *storage.Record, pod, node string, want *load) error {
	has := allocatable(head.Get(nodePrefix + node))
	if len(has) == 0 {
		return nil
	}
	x.mu.Lock()
	x.refresh()
	var short []shortage
	if x.pods[rec.Key] == nil {
		short = x.podsOn(node).shortages(want, has)
	}
	x.mu.Unlock()
	short = slices.DeleteFunc(short, func(s shortage) bool {
		return s.total == 0 && backedByDeviceClass(head, s.resource)
	})
	if len(short) == 0 {
		return nil
	}
	reasons := make([]string, len(short))
	for i, s := range short {
		reasons[i] = s.reason
	}
	err := fmt.Errorf("node %q has insufficient capacity: %s", node, strings.Join(reasons, ", "))
	return apierrors.NewConflict(corev1.Resource("pods/binding"), pod, err)
}

// allocatable returns the allocatable resources in the status of a Node. rec may be nil.
func allocatable(rec *storage.Record) corev1.ResourceList {
	if rec == nil {
		return nil
	}
	raw, _ := object.Field(rec.Value, "status", "allocatable")
	return reader{object.NewCursor(raw)}.amounts()
}

// nodePods is the set of the Pods on one node.
type nodePods map[*nodePod]bool

// podsOn returns the Pods on a node, with their loads computed. The caller holds x.mu.
func (x *NodeUsage) podsOn(node string) nodePods {
	all := x.nodes[node]
	for p := range all {
		if p.rec != nil {
			p.load, p.rec = loadOf(p.rec.Value), nil
		}
	}
	return all
}

// shortage describes a resource or port that a node cannot provide.
type shortage struct {
	resource corev1.ResourceName // "" for a port
	total    int64               // the node's allocatable amount
	reason   string
}

// shortages returns the resources and ports of a load that a node cannot provide beside its Pods. The parameter
// allocatable contains the amounts of the node.
func (pods nodePods) shortages(l *load, allocatable corev1.ResourceList) (short []shortage) {
	for _, r := range l.requests {
		quantity, reported := allocatable[r.resource]
		if !reported {
			continue
		}
		total := amountOf(r.resource, quantity)
		if left := total - pods.sum(r.resource); r.amount > left {
			short = append(short, shortage{r.resource, total, fmt.Sprintf("%s: %s requested, %s left", r.resource,
				formatAmount(r.resource, r.amount, quantity), formatAmount(r.resource, max(left, 0), quantity))})
		}
	}
	for _, port := range l.ports {
		for p := range pods {
			if slices.ContainsFunc(p.load.ports, port.conflictsWith) {
				short = append(short, shortage{total: 1, reason: "host port " + port.String() + " is taken"})
				break
			}
		}
	}
	return short
}

// sum returns the total amount of a resource that the Pods request. If the total exceeds the largest int64, sum
// returns the largest int64.
func (pods nodePods) sum(name corev1.ResourceName) (sum int64) {
	for p := range pods {
		amount := p.load.amount(name)
		if amount > math.MaxInt64-sum {
			return math.MaxInt64
		}
		sum += amount
	}
	return sum
}

// backedByDeviceClass reports whether a DeviceClass provides the extended resource through dynamic resource allocation.
// A node may have such devices although it reports 0 of the resource.
func backedByDeviceClass(head *storage.Snapshot, name corev1.ResourceName) bool {
	if !v1helper.IsExtendedResourceName(name) {
		return false
	}
	for rec := range head.Walk(classPrefix, "") {
		if raw, _ := object.Field(rec.Value, "spec", "extendedResourceName"); unquote(raw) == string(name) {
			return true
		}
	}
	return false
}

// amountOf returns a quantity in the scheduler's unit of the resource: thousandths of a CPU, and 1 of anything else.
// The result is at most the largest int64.
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

// formatAmount formats an amount of a resource in the same format as the given quantity.
func formatAmount(name corev1.ResourceName, amount int64, quantity resource.Quantity) string {
	if name == corev1.ResourceCPU {
		return resource.NewMilliQuantity(amount, quantity.Format).String()
	}
	return resource.NewQuantity(amount, quantity.Format).String()
}
