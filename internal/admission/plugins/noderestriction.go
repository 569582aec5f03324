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

// NodeRestriction is the name of the plugin that restricts the writes of kubelets. The Node authorizer depends on it:
// it grants a kubelet access to the Secrets of the Pods on its node. Without the plugin, a kubelet could create a Pod
// that references any Secret.
const NodeRestriction = noderestriction.PluginName

// nodeRestriction is upstream's plugin NodeRestriction. It handles only writes that a node sends, so writes of other
// users have no overhead.
type nodeRestriction struct{ *plugin }

// Handles implements admission.Plugin.
func (p nodeRestriction) Handles(r *admission.Request) bool {
	_, isNode := nodeidentifier.NewDefaultNodeIdentifier().NodeIdentity(r.User)
	return isNode && p.plugin.Handles(r)
}

// Admit implements admission.Plugin. It also rejects a Node that its kubelet creates with an owner. Upstream rejects
// owners only in updates (CVE-2025-5187). In both cases, a kubelet that may delete the owner, such as its CSINode,
// could delete its Node.
func (p nodeRestriction) Admit(ctx context.Context, r *admission.Request) error {
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
	return upstream.NewForbidden(attributes.New(r, node, nil),
		fmt.Errorf("node %q is not allowed to set ownerReferences", r.Name))
}
