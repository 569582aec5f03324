package authz

import (
	"context"
	"sync"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// nodes decides what the kubelet of a node may see: what the Pods on it need (https://kubernetes.io/docs/reference/access-authn-authz/node/).
// That takes copies of Pods, Nodes and volumes, which a server that has no nodes goes without.
type nodes struct {
	Authorizer
	who   nodeidentifier.NodeIdentifier
	first sync.Once
	asked chan struct{} // closed when a node has asked something
}

func newNodes(from informers.SharedInformerFactory) *nodes {
	graph := node.NewGraph()
	core, storage := from.Core().V1(), from.Storage().V1()
	node.AddGraphEventHandlers(graph, core.Nodes(), core.Pods(), core.PersistentVolumes(), storage.VolumeAttachments(),
		from.Resource().V1().ResourceSlices(), from.Certificates().V1().PodCertificateRequests())
	who := nodeidentifier.NewDefaultNodeIdentifier()
	return &nodes{Authorizer: node.NewAuthorizer(graph, who, bootstrappolicy.NodeRules()), who: who, asked: make(chan struct{})}
}

// run has the copies made when a node has asked.
func (n *nodes) run(ctx context.Context, from informers.SharedInformerFactory) {
	select {
	case <-n.asked:
		from.Start(ctx.Done())
	case <-ctx.Done():
	}
}

// Authorize implements access.Authorizer. It has no opinion about who is no node.
func (n *nodes) Authorize(ctx context.Context, of authorizer.Attributes) (authorizer.Decision, string, error) {
	if u := of.GetUser(); u != nil {
		if _, is := n.who.NodeIdentity(u); is {
			n.first.Do(func() { close(n.asked) })
		}
	}
	return n.Authorizer.Authorize(ctx, of)
}
