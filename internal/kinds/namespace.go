package kinds

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// namespaceBehavior delays the deletion of a namespace until its finalizers are removed, after its objects are deleted.
var namespaceBehavior = resource.Behavior{
	BeforeDelete: terminateNamespace,
	Deletable:    func(obj object.Tree) bool { return len(object.ListAt(obj, "spec", "finalizers")) == 0 },

	PreconditionFailed: "Precondition failed",
}

// terminateNamespace sets the phase of a deleted namespace to Terminating.
func terminateNamespace(_ context.Context, obj object.Tree) error {
	// upstream's separate implementation of this delete does the same
	delete(object.Metadata(obj), "deletionGracePeriodSeconds")
	object.EnsureTree(obj, "status")["phase"] = string(corev1.NamespaceTerminating)
	return nil
}
