package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/admission/plugins"
	"github.com/trellis-k8s/trellis/internal/admission/policy"
	"github.com/trellis-k8s/trellis/internal/admission/webhook"
	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// admission creates the admission plugins. They send no requests before the server serves.
func (s *Server) admission(out *egress.Dialer) (admission.Plugins, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL(), Transport: lazyLoopback{s}, QPS: -1,
		UserAgent: "kube-apiserver"})
	if err != nil {
		return nil, fmt.Errorf("create the client for admission plugins: %w", err)
	}
	catalog := func() *catalog.Catalog { return s.engine.Live.Load() }
	authorize := authorizer.AuthorizerFunc(s.authorizer.Authorize)
	informers := plugins.Informers{Catalog: catalog, Head: s.store.Head}
	s.quotas = &plugins.Quotas{Informers: informers, Stop: s.stopping}
	s.warnNodeRestriction()
	c := plugins.Config{
		Options:        s.config.Admission,
		NodeAuthorizer: s.authorizer.Nodes(),
		Informers:      informers,
		Quotas:         s.quotas,
		Client:         client,
		Stop:           s.drained,
		Authorizer:     authorize,
		Mapper:         restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
	}
	webhooks, end, err := webhook.New(webhook.Config{Head: s.store.Head, Egress: out, Informers: informers,
		Client: client, Authorizer: authorize})
	if err != nil {
		return nil, fmt.Errorf("create admission webhooks: %w", err)
	}
	s.closeWebhooks = end
	c.ServerPlugins = append(webhooks, policy.Plugins(policy.Config{Head: s.store.Head, Catalog: catalog,
		Objects: policyObjects{s}, Client: client, Authorizer: authorize})...)
	return plugins.Open(c)
}

// warnNodeRestriction logs a warning if the Node authorizer is configured and the admission plugin NodeRestriction is
// disabled.
func (s *Server) warnNodeRestriction() {
	if s.authorizer.Nodes() && slices.Contains(s.config.Admission.Disable, plugins.NodeRestriction) {
		s.config.Logger.Warn("the admission plugin NodeRestriction is disabled, but the Node authorizer is " +
			"configured: a client with any kubelet certificate can read every Secret and act as every " +
			"ServiceAccount. To prevent this, remove NodeRestriction from --disable-admission-plugins")
	}
}

// policyObjects reads objects for admission policies, at the latest revision of the store.
type policyObjects struct{ s *Server }

// Get implements policy.Objects.
func (o policyObjects) Get(ctx context.Context, v *resource.Version, namespace, name string) (policy.Object, error) {
	found, err := o.s.engine.Get(ctx, verb.Target{Version: v, Namespace: namespace, Name: name}, "0")
	return policy.Object{Record: found.Record, Tree: found.Tree}, err
}

// List implements policy.Objects.
func (o policyObjects) List(ctx context.Context, v *resource.Version, namespace string,
	selector labels.Selector) ([]policy.Object, error) {
	list, err := o.s.engine.List(ctx, verb.Target{Version: v, Namespace: namespace},
		read.ListOptions{Labels: selector, ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	all := make([]policy.Object, len(list.Items))
	for i, item := range list.Items {
		all[i] = policy.Object{Record: item.Record, Tree: item.Tree}
	}
	return all, nil
}

// lazyLoopback is a transport to this server. It can be created before the server's handler exists.
type lazyLoopback struct{ s *Server }

func (l lazyLoopback) RoundTrip(r *http.Request) (*http.Response, error) {
	return l.s.Loopback().Transport.RoundTrip(r)
}
