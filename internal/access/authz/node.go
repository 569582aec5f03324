package authz

import (
	"context"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// nodeAuthorizer is the Node authorizer, which lets a kubelet read the objects that the Pods on its node need
// (https://kubernetes.io/docs/reference/access-authn-authz/node/). It needs informers of Pods, Nodes and volumes. They
// start with the first request of a node, so a server without nodes never runs them.
type nodeAuthorizer struct {
	informers  informers.SharedInformerFactory
	identifier nodeidentifier.NodeIdentifier
	once       sync.Once
	used       chan struct{} // closed at the first request of a node
	upstream   Authorizer    // nil until used is closed
}

func newNodeAuthorizer(factory informers.SharedInformerFactory) *nodeAuthorizer {
	return &nodeAuthorizer{
		informers:  factory,
		identifier: nodeidentifier.NewDefaultNodeIdentifier(),
		used:       make(chan struct{}),
	}
}

// run starts the informers at the first request of a node.
func (n *nodeAuthorizer) run(ctx context.Context) {
	select {
	case <-n.used:
		n.informers.Start(ctx.Done())
	case <-ctx.Done():
	}
}

// authorizer returns upstream's authorizer. The first call creates it and triggers the start of the informers.
// Upstream's authorizer waits until they have started.
func (n *nodeAuthorizer) authorizer() Authorizer {
	n.once.Do(func() {
		graph := node.NewGraph()
		core, storage := n.informers.Core().V1(), n.informers.Storage().V1()
		node.AddGraphEventHandlers(graph, core.Nodes(), core.Pods(), core.PersistentVolumes(),
			storage.VolumeAttachments(),
			n.informers.Resource().V1().ResourceSlices(), n.informers.Certificates().V1().PodCertificateRequests())
		n.upstream = node.NewAuthorizer(graph, n.identifier, bootstrappolicy.NodeRules())
		close(n.used)
	})
	return n.upstream
}

func (n *nodeAuthorizer) isNode(u user.Info) bool {
	if u == nil {
		return false
	}
	_, isNode := n.identifier.NodeIdentity(u)
	return isNode
}

// Authorize implements access.Authorizer. It has no opinion on users that are not nodes.
func (n *nodeAuthorizer) Authorize(
	ctx context.Context, attributes authorizer.Attributes,
) (authorizer.Decision, string, error) {
	if !n.isNode(attributes.GetUser()) {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return n.authorizer().Authorize(ctx, attributes)
}

// RulesFor implements authorizer.RuleResolver.
func (n *nodeAuthorizer) RulesFor(
	ctx context.Context, u user.Info, namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if !n.isNode(u) {
		return nil, nil, false, nil
	}
	return n.authorizer().RulesFor(ctx, u, namespace)
}
