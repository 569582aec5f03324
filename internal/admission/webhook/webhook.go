// Package webhook implements the plugins MutatingAdmissionWebhook and ValidatingAdmissionWebhook. An index of the
// configurations in the store finds the webhooks that may match a write. Upstream's code then evaluates their rules.
// Webhooks are called through internal/egress.
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

// Config holds the dependencies of the plugins.
type Config struct {
	Head       func() *storage.Snapshot
	Egress     *egress.Dialer
	Informers  informers.SharedInformerFactory // for Namespaces
	Client     kubernetes.Interface            // gets a Namespace that Informers do not find
	Authorizer authorizer.UnconditionalAuthorizer
}

// New returns the two plugins. The caller calls end after the last write, to close the connections to webhooks.
func New(c Config) (plugins []admission.Plugin, end func(), err error) {
	// Upstream's plugin is used only to evaluate whether a webhook must be called.
	matcher, err := generic.NewWebhook(upstream.NewHandler(), nil,
		func(informers.SharedInformerFactory, sets.Set[schema.GroupResource]) generic.Source { return nil },
		func(*webhookutil.ClientManager) generic.Dispatcher { return nil })
	if err != nil {
		return nil, nil, err
	}
	matcher.SetExternalKubeInformerFactory(c.Informers)
	matcher.SetExternalKubeClientSet(c.Client)
	matcher.SetUnconditionalAuthorizer(c.Authorizer)
	clients := newClientPool(c.Egress)
	return []admission.Plugin{
		&mutator{plugin{
			name: "MutatingAdmissionWebhook", matcher: matcher, index: newIndex(mutatingConfigurations, c.Head,
				clients),
		}},
		&validator{plugin{
			name: "ValidatingAdmissionWebhook", matcher: matcher, index: newIndex(validatingConfigurations, c.Head,
				clients),
		}},
	}, clients.close, nil
}

// plugin holds the fields of both plugins.
type plugin struct {
	name    string
	matcher *generic.Webhook
	index   *index
}

// Name implements admission.Plugin.
func (p *plugin) Name() string { return p.name }

// Configure reads a WebhookAdmissionConfiguration of apiserver.config.k8s.io. It must be called before the first
// request.
func (p *plugin) Configure(file io.Reader) error {
	settings, err := config.LoadConfig(file)
	if err != nil {
		return err
	}
	if settings.StaticManifestsDir != "" {
		return errors.New("staticManifestsDir: not supported")
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

// each calls f for the webhooks that match a request, in order. f may change the object for later webhooks.
func (p *plugin) each(ctx context.Context, s *reviewRequest, f func(*hook, *generic.WebhookInvocation) error) error {
	for _, h := range p.index.candidates(s.Request) {
		if !h.mayMatch(s.Request) {
			continue
		}
		invocation, denied := p.matcher.ShouldCallHook(ctx, h, s, s, s)
		if denied != nil {
			return denied
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
