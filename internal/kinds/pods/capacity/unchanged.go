package capacity

import (
	corev1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/trellis-k8s/trellis/internal/object"
)

// sameLoad reports whether two states of a Pod on a node have the same load. It does not compare immutable fields. It
// compares trees and decodes nothing, because it runs on each write of a Pod's status.
func sameLoad(a, b object.Tree) bool {
	x, y := object.TreeAt(a, "status"), object.TreeAt(b, "status")
	return isTerminal(x) == isTerminal(y) && resizeReason(x) == resizeReason(y) &&
		samePart(object.TreeAt(a, "spec"), object.TreeAt(b, "spec"), "containers", "initContainers") &&
		samePart(x, y, "containerStatuses", "initContainerStatuses")
}

// samePart compares the resources in two specs or two statuses of a Pod, and those of the containers in them.
func samePart(a, b object.Tree, containers, initContainers string) bool {
	return sameResources(a, b) && sameLists(a[containers], b[containers]) &&
		sameLists(a[initContainers], b[initContainers])
}

// sameResources compares the resource fields of two objects: Pod specs, Pod statuses, containers or container
// statuses.
func sameResources(a, b object.Tree) bool {
	return object.Equal(a["resources"], b["resources"]) &&
		object.Equal(a["allocatedResources"], b["allocatedResources"])
}

// sameLists compares the names and resources in two lists of containers or of container statuses.
func sameLists(a, b any) bool {
	listA, _ := a.([]any)
	listB, _ := b.([]any)
	if len(listA) != len(listB) {
		return false
	}
	for i := range listA {
		x, _ := listA[i].(object.Tree)
		y, _ := listB[i].(object.Tree)
		if x["name"] != y["name"] || !sameResources(x, y) {
			return false
		}
	}
	return true
}

func isTerminal(status object.Tree) bool {
	return podutil.IsPodPhaseTerminal(corev1.PodPhase(object.String(status, "phase")))
}

// resizeReason returns the reason why a resize of the Pod is pending, or nil.
func resizeReason(status object.Tree) any {
	return object.Condition(status, string(corev1.PodResizePending))["reason"]
}

// nodeName returns the name of the node that a Pod is bound to. "" means none.
func nodeName(pod object.Tree) string { return object.StringAt(pod, "spec", "nodeName") }
