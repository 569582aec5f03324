// Package webhook is the plugins MutatingAdmissionWebhook and ValidatingAdmissionWebhook: which webhooks are to hear of a write is
// looked up in an index over their configurations in the store and then judged by upstream's own code; they are called by way of
// internal/egress.
package webhook

import (
	"context"
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	upstream "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/config"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/egress/credentials"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Config is what the plugins need of the server.
type Config struct {
	Head       func() *storage.Snapshot
	Egress     *egress.Dialer
	Informers  informers.SharedInformerFactory // of Namespaces
	Client     kubernetes.Interface            // finds a Namespace that Informers do not
	Authorizer authorizer.UnconditionalAuthorizer
}

// New returns the two plugins, and what closes the connections to webhooks when the last write has ended.
func New(c Config) (plugins []admission.Plugin, end func(), err error) {
	// Upstream's own plugin is asked for nothing but whether a webhook is to be called.
	matcher, err := generic.NewWebhook(upstream.NewHandler(), nil,
		func(informers.SharedInformerFactory, sets.Set[schema.GroupResource]) generic.Source { return nil },
		func(*webhookutil.ClientManager) generic.Dispatcher { return nil })
	if err != nil {
		return nil, nil, err
	}
	matcher.SetExternalKubeInformerFactory(c.Informers)
	matcher.SetExternalKubeClientSet(c.Client)
	matcher.SetUnconditionalAuthorizer(c.Authorizer)
	callers := newClientPool(c.Egress)
	return []admission.Plugin{
		&mutator{plugin{name: "MutatingAdmissionWebhook", matcher: matcher, index: newIndex(mutatingConfigurations, c.Head, callers)}},
		&validator{plugin{name: "ValidatingAdmissionWebhook", matcher: matcher, index: newIndex(validatingConfigurations, c.Head, callers)}},
	}, callers.close, nil
}

// plugin is what both have.
type plugin struct {
	name    string
	matcher *generic.Webhook
	index   *index
}

// Name implements admission.Plugin.
func (p *plugin) Name() string { return p.name }

// Configure reads a WebhookAdmissionConfiguration of apiserver.config.k8s.io, before the first request.
func (p *plugin) Configure(file io.Reader) error {
	settings, err := config.LoadConfig(file)
	if err != nil {
		return err
	}
	if settings.StaticManifestsDir != "" {
		return errors.New("staticManifestsDir: not supported here")
	}
	p.index.credentials, err = credentials.ForAdmission(settings.KubeConfigFile)
	return err
}

// Handles implements admission.Plugin.
func (p *plugin) Handles(r *admission.Request) bool {
	for _, h := range p.index.candidates(r) {
		if h.mayMatch(r) {
			return true
		}
	}
	return false
}

// each calls f for the webhooks that a request is to be told to, in their order; f may change what they see of it.
func (p *plugin) each(ctx context.Context, s *reviewRequest, f func(*hook, *generic.WebhookInvocation) error) error {
	for _, h := range p.index.candidates(s.Request) {
		if !h.mayMatch(s.Request) {
			continue
		}
		invocation, refused := p.matcher.ShouldCallHook(ctx, h, s, s, s)
		if refused != nil {
			return refused
		}
		if invocation == nil {
			continue
		}
		if err := f(h, invocation); err != nil {
			return err
		}
	}
	return nil
}
