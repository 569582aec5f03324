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
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Admission are the flags of kube-apiserver that say which admission plugins there are.
type Admission struct {
	Enable, Disable []string // their names: --enable-admission-plugins, --disable-admission-plugins
	ConfigFile      string   // --admission-control-config-file; "": none
}

// admission makes the plugins. They ask nothing before the server serves.
func (s *Server) admission(out *egress.Dialer) (admission.Plugins, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL(), Transport: later{s}, QPS: -1, UserAgent: "kube-apiserver"})
	if err != nil {
		return nil, fmt.Errorf("client of admission: %w", err)
	}
	catalog, may := func() *resource.Catalog { return s.engine.Live.Load() }, authorizer.AuthorizerFunc(s.authorizer.Authorize)
	informers := plugins.Informers{Catalog: catalog, Head: s.store.Head}
	s.quotas = &plugins.Quotas{From: informers, Stop: s.stopping}
	s.warnOfNodes()
	c := plugins.Config{
		Enable: s.config.Admission.Enable, Disable: s.config.Admission.Disable, File: s.config.Admission.ConfigFile,
		NodeAuthorizer: s.authorizer.Nodes(),
		Informers:      informers,
		Quotas:         s.quotas,
		Client:         client,
		Stop:           s.drained,
		Authorizer:     may,
		Mapper:         restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
	}
	webhooks, end, err := webhook.New(webhook.Config{Head: s.store.Head, Egress: out, Informers: informers, Client: client, Authorizer: may})
	if err != nil {
		return nil, fmt.Errorf("admission webhooks: %w", err)
	}
	s.hangUp = end
	c.Own = append(webhooks, policy.Plugins(policy.Config{Head: s.store.Head, Catalog: catalog, Objects: stored{s}, Client: client, Authorizer: may})...)
	return plugins.Open(c)
}

// warnOfNodes warns where the Node authorizer works without the admission plugin that its decisions rely on.
func (s *Server) warnOfNodes() {
	if s.authorizer.Nodes() && slices.Contains(s.config.Admission.Disable, plugins.NodeRestriction) {
		s.config.Logger.Warn("the admission plugin NodeRestriction is disabled, but the Node authorizer is configured: any kubelet certificate can read every Secret and act as every ServiceAccount; remove NodeRestriction from --disable-admission-plugins")
	}
}

// stored are objects as policies read them: at the head of the store.
type stored struct{ s *Server }

// Get implements policy.Objects.
func (o stored) Get(ctx context.Context, v *resource.Version, namespace, name string) (policy.Object, error) {
	found, err := o.s.engine.Get(ctx, engine.Target{Version: v, Namespace: namespace, Name: name}, "0")
	return policy.Object{Record: found.Record, Tree: found.Tree}, err
}

// List implements policy.Objects.
func (o stored) List(ctx context.Context, v *resource.Version, namespace string, selector labels.Selector) ([]policy.Object, error) {
	list, err := o.s.engine.List(ctx, engine.Target{Version: v, Namespace: namespace}, engine.ListOptions{Labels: selector, ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	all := make([]policy.Object, len(list.Items))
	for i, item := range list.Items {
		all[i] = policy.Object{Record: item.Record, Tree: item.Tree}
	}
	return all, nil
}

// later is the way to a server that is not put together yet.
type later struct{ s *Server }

func (l later) RoundTrip(r *http.Request) (*http.Response, error) {
	return l.s.Loopback().Transport.RoundTrip(r)
}
