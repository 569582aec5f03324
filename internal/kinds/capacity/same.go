package capacity

import (
	corev1 "k8s.io/api/core/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"github.com/trellis-k8s/trellis/internal/object"
)

// takesTheSame is whether two states of a Pod on a node differ in nothing that its load is made of. What may not change is not looked
// at. It is asked about each write of a Pod's status, and so decodes nothing.
func takesTheSame(a, b object.Tree) bool {
	was, is := child(a, "status"), child(b, "status")
	return ended(was) == ended(is) && pendingResize(was) == pendingResize(is) &&
		samePart(child(a, "spec"), child(b, "spec"), "containers", "initContainers") && samePart(was, is, "containerStatuses", "initContainerStatuses")
}

// samePart compares the spec or the status of a Pod, with what it says of containers.
func samePart(a, b object.Tree, containers, initContainers string) bool {
	return sameResources(a, b) && sameLists(a[containers], b[containers]) && sameLists(a[initContainers], b[initContainers])
}

// sameResources compares what a Pod, a container or the status of one says of its resources.
func sameResources(a, b object.Tree) bool {
	return object.Equal(a["resources"], b["resources"]) && object.Equal(a["allocatedResources"], b["allocatedResources"])
}

func sameLists(a, b any) bool {
	was, _ := a.([]any)
	is, _ := b.([]any)
	if len(was) != len(is) {
		return false
	}
	for i := range was {
		x, _ := was[i].(object.Tree)
		y, _ := is[i].(object.Tree)
		if x["name"] != y["name"] || !sameResources(x, y) {
			return false
		}
	}
	return true
}

func ended(status object.Tree) bool {
	return podutil.IsPodPhaseTerminal(corev1.PodPhase(object.String(status, "phase")))
}

// pendingResize is why a resize waits, or nil.
func pendingResize(status object.Tree) any {
	all, _ := status["conditions"].([]any)
	for _, c := range all {
		if c, _ := c.(object.Tree); c["type"] == string(corev1.PodResizePending) {
			return c["reason"]
		}
	}
	return nil
}

func child(t object.Tree, name string) object.Tree {
	c, _ := t[name].(object.Tree)
	return c
}

// nodeName is that of the node a Pod is on, "" of none.
func nodeName(pod object.Tree) string { return object.String(child(pod, "spec"), "nodeName") }
