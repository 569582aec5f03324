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

// nodes decides what the kubelet of a node may see: what the Pods on it need (https://kubernetes.io/docs/reference/access-authn-authz/node/).
// That takes copies of Pods, Nodes and volumes, which a server that has no nodes goes without.
type nodes struct {
	from  informers.SharedInformerFactory
	who   nodeidentifier.NodeIdentifier
	first sync.Once
	asked chan struct{} // closed when a node has asked something; then there is
	graph Authorizer
}

func newNodes(from informers.SharedInformerFactory) *nodes {
	return &nodes{from: from, who: nodeidentifier.NewDefaultNodeIdentifier(), asked: make(chan struct{})}
}

// run has the copies made when a node has asked.
func (n *nodes) run(ctx context.Context) {
	select {
	case <-n.asked:
		n.from.Start(ctx.Done())
	case <-ctx.Done():
	}
}

// by is upstream's authorizer, which waits for the copies from its beginning on.
func (n *nodes) by() Authorizer {
	n.first.Do(func() {
		graph := node.NewGraph()
		core, storage := n.from.Core().V1(), n.from.Storage().V1()
		node.AddGraphEventHandlers(graph, core.Nodes(), core.Pods(), core.PersistentVolumes(), storage.VolumeAttachments(),
			n.from.Resource().V1().ResourceSlices(), n.from.Certificates().V1().PodCertificateRequests())
		n.graph = node.NewAuthorizer(graph, n.who, bootstrappolicy.NodeRules())
		close(n.asked)
	})
	return n.graph
}

func (n *nodes) knows(u user.Info) bool {
	if u == nil {
		return false
	}
	_, is := n.who.NodeIdentity(u)
	return is
}

// Authorize implements access.Authorizer. It has no opinion about who is no node.
func (n *nodes) Authorize(ctx context.Context, of authorizer.Attributes) (authorizer.Decision, string, error) {
	if !n.knows(of.GetUser()) {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return n.by().Authorize(ctx, of)
}

// RulesFor implements authorizer.RuleResolver.
func (n *nodes) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if !n.knows(u) {
		return nil, nil, false, nil
	}
	return n.by().RulesFor(ctx, u, namespace)
}
