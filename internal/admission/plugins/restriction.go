package plugins

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/admission/attributes"
)

// NodeRestriction is the name of the plugin that limits what kubelets write. It completes the Node authorizer, which decides by the
// Pods on a node: without the plugin a kubelet creates any Pod there, and reads the Secrets that this Pod names.
const NodeRestriction = noderestriction.PluginName

// restriction is upstream's plugin NodeRestriction. It handles only the writes of nodes, so writes of other users do not pay for it.
type restriction struct{ *plugin }

// Handles implements admission.Plugin.
func (p restriction) Handles(r *admission.Request) bool {
	_, isNode := nodeidentifier.NewDefaultNodeIdentifier().NodeIdentity(r.User)
	return isNode && p.plugin.Handles(r)
}

// Admit implements admission.Plugin. It also refuses a Node that its kubelet creates with an owner. Upstream refuses an owner in an
// update only (CVE-2025-5187). A kubelet that may delete the owner, its CSINode for example, deletes its Node by either.
func (p restriction) Admit(ctx context.Context, r *admission.Request) error {
	if err := p.plugin.Admit(ctx, r); err != nil {
		return err
	}
	if r.Operation != admission.Create || r.Resource.GroupResource() != corev1.Resource("nodes") {
		return nil
	}
	node, _, err := r.Internal()
	if err != nil || len(node.GetOwnerReferences()) == 0 {
		return err
	}
	return upstream.NewForbidden(attributes.Of(r, node, nil), fmt.Errorf("node %q is not allowed to set ownerReferences", r.Name))
}
