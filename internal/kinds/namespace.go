package kinds

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// SystemNamespaces returns the objects of the namespaces that exist from the
// start, as a client would send them. They are the caller's.
func SystemNamespaces() []object.Tree {
	var all []object.Tree
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		all = append(all, object.Tree{
			"apiVersion": "v1", "kind": "Namespace", "metadata": object.Tree{"name": name},
		})
	}
	return all
}

// namespaceBehavior is how a namespace ends: it stays until what is in it has gone.
var namespaceBehavior = resource.Behavior{
	BeforeDelete: terminateNamespace,
	Deletable:    func(obj object.Tree) bool { return len(list(obj, "spec", "finalizers")) == 0 },

	PreconditionFailed: "Precondition failed",
}

// terminateNamespace starts the end of a namespace.
func terminateNamespace(_ context.Context, obj object.Tree) error {
	delete(object.Metadata(obj), "deletionGracePeriodSeconds") // as upstream, which has a way of its own to delete a namespace
	child(obj, "status")["phase"] = string(corev1.NamespaceTerminating)
	return nil
}
