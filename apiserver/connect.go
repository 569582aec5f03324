package apiserver

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/access/rbac"
	"github.com/trellis-k8s/trellis/internal/api"
	"github.com/trellis-k8s/trellis/internal/api/discovery"
	"github.com/trellis-k8s/trellis/internal/api/health"
	"github.com/trellis-k8s/trellis/internal/api/openapi"
	"github.com/trellis-k8s/trellis/internal/controllers/crd"
	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/egress/credentials"
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/serving"
)

// connect creates and connects the parts of the server, from the store up to the HTTP handler.
func (s *Server) connect(ctx context.Context) (err error) {
	out := s.dialer()
	s.config.Authentication.Dial, s.config.Authorization.Dial = out.DialContext, out.DialContext
	s.config.Authentication.EgressLookup = s.egressSelector.Lookup
	if err := s.openAudit(out.DialContext); err != nil {
		return err
	}
	if err := s.openAuthentication(); err != nil {
		return err
	}
	if err := s.checkIdentity(ctx); err != nil {
		return err
	}
	if err := s.openAuthorization(); err != nil {
		return err
	}
	if err := s.openWebhooks(out); err != nil {
		return err
	}
	if s.engine, err = s.openEngine(ctx, out); err != nil {
		return err
	}
	if err := s.join(ctx); err != nil {
		return err
	}
	s.hooks.done(nil, hookStorage, hookCRDs)
	s.feed = s.engine.NewFeed()
	s.openAggregation(out)
	s.hooks.done(nil, hookRegistration, hookDiscovery)
	if err := s.openNodes(out); err != nil {
		return err
	}
	s.handler = api.New(api.Config{
		Engine: s.engine,
		Live:   append([]health.Check{{Name: "storage", Run: s.checkAlive}}, s.checks()...),
		Ready: append(append([]health.Check{{Name: "storage", Run: s.checkWritable}}, s.checks()...),
			health.Check{Name: "shutdown", Run: s.checkRunning}),
		Gauges:         s.gauges(),
		Egress:         out.Metrics,
		Barriers:       s.barriers,
		RequestTimeout: s.config.RequestTimeout,
		MemoryBudget:   s.config.MemoryBudget,
		Authenticator:  access.NewAuthenticator(s.authn.Authentication),
		Issuer:         s.issuer(),
		Authorizer:     s.authorizer,
		Fairness:       flowcontrol.New(s.config.Fairness, s.store.Head, s.config.Clock),
		Aggregator:     s.aggregator,
		Connect: func(ctx context.Context, namespace, name string, options runtime.Object,
			fail func(http.ResponseWriter, *http.Request, error)) (http.Handler, error) {
			return s.nodes.Handler(ctx, namespace, name, options, fail)
		},
		Discovery:  discovery.Handler(s.engine.Live, s.aggregator.Discovery, s.discoveryAddresses()),
		OpenAPI:    openapi.Handler(s.engine.Live, s.aggregator),
		EnableCBOR: s.config.EnableCBOR,
		Profiling:  s.config.Profiling,
		Audit:      s.audit.Audit,
		Valid:      s.valid(),
	})
	s.http = serving.New(s.listener, s.withGoaway(s.handler), s.certificates.Config, s.config.OpenFiles,
		s.config.Logger)
	s.markUnavailable()
	loopback := s.Loopback()
	loopback.WarningHandler = rest.NoWarnings{}
	if s.client, err = kubernetes.NewForConfig(loopback); err != nil {
		return fmt.Errorf("create client for default objects and controllers: %w", err)
	}
	return s.openPresence()
}

// openWebhooks creates the client of conversion webhooks.
func (s *Server) openWebhooks(out *egress.Dialer) error {
	from, warnings, err := credentials.ForConversion(s.config.ConversionKubeconfig)
	if err != nil {
		return fmt.Errorf("--conversion-webhook-kubeconfig: %w", err)
	}
	for _, warning := range warnings {
		s.config.Logger.Warn("--conversion-webhook-kubeconfig: " + warning)
	}
	s.reachability = crd.NewReachability()
	s.webhooks = conversion.NewWebhooks(conversion.WebhookConfig{
		Timeout:     s.config.RequestTimeout,
		Report:      s.reachability.Report,
		Egress:      out,
		Credentials: from,
		Unavailable: func(crd string) bool {
			d := s.definitionOf(crd)
			return d != nil && d.Custom != nil && d.Custom.ConversionUnavailable
		},
		WebhookOf: func(crd string) string {
			if d := s.definitionOf(crd); d != nil {
				return d.Conversion().Webhook
			}
			return ""
		},
		Observe:      func(c conversion.Call) { s.handler.ObserveConversion(c) },
		Disconnected: func(webhook string) { s.engine.WebhookDisconnected(webhook) },
	})
	return nil
}

// definitionOf returns the Definition of a CRD, or nil.
func (s *Server) definitionOf(crd string) *resource.Definition {
	plural, group, _ := strings.Cut(crd, ".")
	return s.definition(group, plural)
}

// openEngine opens the engine. It returns after the catalog contains all stored kinds.
func (s *Server) openEngine(ctx context.Context, out *egress.Dialer) (*engine.Engine, error) {
	enabled, err := kinds.ParseRuntimeConfig(s.config.RuntimeConfig)
	if err != nil {
		return nil, fmt.Errorf("runtime config: %w", err)
	}
	admits, err := s.admission(out)
	if err != nil {
		return nil, err
	}
	return engine.Open(ctx, engine.Config{
		Store: s.store,
		Kinds: func(live *catalog.Live) []*resource.Definition {
			return kinds.Definitions(kinds.Config{
				Catalog: live.Current, Head: s.store.Head,
				EventTTL:   s.config.EventTTL,
				Authorizer: s.authorizer, Rules: s.authorizer, RoleRules: rbac.Resolver{Index: s.roles},
				Authenticator: s.authn.Tokens, Issuer: s.authn.Issuer, Audiences: s.authn.Audiences,
				MaxTokenExpiration: s.config.Authentication.Accounts.MaxExpiration,
				ServiceRanges:      s.config.ServiceClusterIPRanges,
				NodePorts:          s.config.ServiceNodePortRange,
				NoFieldSelectors:   s.config.DisableFieldSelectors, UnguardedBindings: s.config.UnguardedBindings,
				AllowPrivileged: !s.config.DisallowPrivileged,
				StorageHealth:   s.checkWritable,
				Enabled:         enabled,
			})
		},
		Admission:              admits,
		IgnoreSelectableFields: s.config.DisableFieldSelectors,
		Webhook:                s.webhooks.Convert, Generation: s.webhooks.Generation,
		RevalidateInterval: s.config.ConversionRecheck,
		Failed:             s.fail,
	})
}

// join registers the server in etcd. Writes of kinds and rules on other servers then wait for this one.
func (s *Server) join(ctx context.Context) error {
	if s.etcd == nil {
		return nil
	}
	return s.etcd.Join(ctx, func(ctx context.Context, revision int64) error {
		_, err := s.engine.Live.Wait(ctx, revision)
		return err
	})
}

// valid returns the function that reports whether this server may answer requests, or nil if it always may.
func (s *Server) valid() func() error {
	if s.etcd == nil {
		return nil
	}
	return s.etcd.Valid
}

// markUnavailable marks the conversion webhooks that are unreachable according to the conditions of their CRDs.
func (s *Server) markUnavailable() {
	for name, d := range s.customKinds() {
		if d.ConversionUnavailable {
			s.webhooks.HalfOpen(name)
		}
	}
}

// migrating returns the names of the CRDs with a condition of an unfinished storage migration.
func (s *Server) migrating() (names []string) {
	for name, d := range s.customKinds() {
		if d.Migrating {
			names = append(names, name)
		}
	}
	return names
}

// customKinds returns the CRDs that the server serves, by name.
func (s *Server) customKinds() iter.Seq2[string, *resource.Custom] {
	return func(yield func(string, *resource.Custom) bool) {
		for d := range s.engine.Live.Load().Definitions() {
			if d.Custom != nil && !yield(strings.TrimPrefix(d.Custom.Key, definition.CRDPrefix), d.Custom) {
				return
			}
		}
	}
}
