package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/authn"
	"github.com/trellis-k8s/trellis/internal/access/authz"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/access/rbac"
	"github.com/trellis-k8s/trellis/internal/admission/plugins"
	"github.com/trellis-k8s/trellis/internal/aggregation"
	"github.com/trellis-k8s/trellis/internal/api"
	"github.com/trellis-k8s/trellis/internal/api/discovery"
	"github.com/trellis-k8s/trellis/internal/api/openapi"
	"github.com/trellis-k8s/trellis/internal/controllers"
	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/egress/credentials"
	"github.com/trellis-k8s/trellis/internal/egress/selector"
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/ownership"
	"github.com/trellis-k8s/trellis/internal/proxy/nodes"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/serving"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
)

// Server is a running API server.
type Server struct {
	config       Config
	ways         *selector.Selector // out of here
	listener     net.Listener
	store        storage.Store
	disk         embedded.Health // of what is below store
	keys         serving.Keys
	certificates *serving.Certificates
	authn        *authn.Authenticators
	roles        *rbac.Index
	authorizer   *authz.Authorizers
	audit        auditing
	// proxyClient and kubeletClient are certificates; nil: one of the server's own.
	proxyClient, kubeletClient *dynamiccertificates.DynamicCertKeyPairContent
	handler                    *api.Server
	quotas                     *plugins.Quotas
	hangUp                     func() // on the webhooks of admission
	feed                       *engine.Feed
	webhooks                   *conversion.Webhooks // nil until connect, as is
	engine                     *engine.Engine
	// reachable gets to know which webhooks cannot be reached, apiServices who serves what.
	reachable   *controllers.Reachability
	apiServices *controllers.APIServices
	aggregator  *aggregation.Aggregator // nil until connect, as is
	nodes       *nodes.Proxy
	migrating   []string // CRDs that say so from before
	http        *serving.Server
	stopping    chan struct{} // closed when the server begins to end
	drained     chan struct{} // closed when no request is left
	hooks       hooks
	failed      chan struct{}
	failOnce    sync.Once
	failure     error // set before failed is closed

	// The loops run beside the requests. They are clients, and end before the requests do.
	loops      sync.WaitGroup
	stopLoops  context.CancelFunc
	believing  sync.WaitGroup // reading again who is believed
	disbelieve context.CancelFunc
	closed     func() error // once
}

// Start opens everything and serves. When it returns, every stored kind is served.
// The caller ends the server with Shutdown; ctx only bounds the start.
func Start(ctx context.Context, c Config) (*Server, error) {
	s := &Server{config: c.withDefaults(), failed: make(chan struct{}), stopping: make(chan struct{}), drained: make(chan struct{}), stopLoops: func() {}, hangUp: func() {}, disbelieve: func() {}, reachable: controllers.NewReachability()}
	s.closed = sync.OnceValue(s.close)
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Shutdown())
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) (err error) {
	if s.certificates, err = serving.NewCertificates(s.config.TLS); err != nil {
		return err
	}
	if err := s.openClientCertificates(); err != nil {
		return err
	}
	if s.ways, err = selector.Open(s.config.EgressSelectorFile); err != nil {
		return fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	if s.store, err = s.open(ctx); err != nil {
		return err
	}
	if s.listener, err = serving.Listen(s.config.Address); err != nil {
		return err
	}
	if err := s.makeKeys(); err != nil {
		return err
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	if err := s.systemNamespaces(ctx); err != nil {
		return fmt.Errorf("system namespaces: %w", err)
	}
	s.hooks.done(nil, hookNamespaces)
	addresses := make(chan error, 1)
	go func() {
		if !s.serves(networkingv1.SchemeGroupVersion.WithResource("servicecidrs")) {
			addresses <- nil
			return
		}
		addresses <- errors.Join(controllers.EnsureServiceCIDR(ctx, s.Loopback(), s.config.ServiceClusterIPRanges), s.repairAddresses(ctx))
	}()
	if err := errors.Join(controllers.Bootstrap(ctx, s.Loopback(), s.config.Controllers), <-addresses); err != nil {
		return fmt.Errorf("what every cluster has, and the addresses of Services: %w", err)
	}
	s.hooks.done(nil, hookRoles, hookPriorityClasses, hookFairnessProducer, hookAddresses)
	conditions := make(chan error, 1)
	go func() { conditions <- s.writeDangling(ctx) }()
	if err := errors.Join(s.publish(ctx), <-conditions); err != nil {
		return fmt.Errorf("the Service kubernetes, and conditions of FlowSchemas: %w", err)
	}
	s.hooks.done(nil, hookKubernetesService, hookFairnessConsumer)
	go s.serve()
	s.runLoops()
	return s.writeKubeconfig()
}

func (s *Server) runLoops() {
	ctx, cancel := context.WithCancel(context.Background())
	s.stopLoops = cancel
	ctx = controllers.WithLogger(ctx, s.config.Logger)
	s.loops.Go(func() {
		if err := s.feed.Run(ctx); ctx.Err() == nil {
			s.fail(fmt.Errorf("tell the control loops of changes: %w", err))
		}
	})
	upstream := s.upstream()
	loops := func(ctx context.Context, c *rest.Config) error {
		return controllers.Run(ctx, c, s.feed.Follow, s.config.AutoMigrateStorage, s.migrating, s.apiServices, upstream)
	}
	s.loops.Go(func() { s.authorizer.Run(ctx, s.report) })
	s.certificates.Run(ctx)
	s.loops.Go(func() { s.ways.Run(ctx) })
	if s.kubeletClient != nil {
		s.loops.Go(func() { s.kubeletClient.Run(ctx, 1) })
	}
	s.every(ctx, serving.RenewalCheck, "the server's own certificates are not renewed", s.renewKeys)
	ranges := func(ctx context.Context, c *rest.Config) error {
		if !s.serves(networkingv1.SchemeGroupVersion.WithResource("servicecidrs")) {
			return nil
		}
		s.every(ctx, repairInterval, "the addresses of Services are not repaired", func() error { return s.repairAddresses(ctx) })
		return controllers.RunServiceCIDRs(ctx, c, s.config.ServiceClusterIPRanges)
	}
	s.every(ctx, priorityInterval, "the priorities of requests are not kept", func() error { return controllers.ReconcileFlowControl(ctx, s.Loopback()) })
	s.every(ctx, namespacesInterval, "the system namespaces are not kept", func() error { return s.systemNamespaces(ctx) })
	for _, loop := range []struct {
		run   func(context.Context, *rest.Config) error
		hooks []string // that are done when it runs
	}{
		{loops, []string{hookCRDControllers}},
		{ranges, []string{hookServiceCIDRs}},
		{upstream.Run, nil},
		{s.reachable.Run, nil},
		{s.keepAPIServices, []string{hookLocalAvailable, hookRemoteAvailable, hookAutoregistration}},
		{s.trust, []string{hookTrust}},
		{controllers.RunTokenTracking, []string{hookTokenTracking}},
	} {
		s.hooks.done(nil, loop.hooks...)
		s.loops.Go(func() {
			if err := loop.run(ctx, s.Loopback()); err != nil {
				s.config.Logger.Error("the control loops do not run", "error", err)
				s.hooks.done(err, loop.hooks...)
			}
		})
	}
}

// writeDangling writes the condition Dangling of FlowSchemas, unless priority and fairness are disabled.
func (s *Server) writeDangling(ctx context.Context) error {
	if s.config.Fairness.Disabled {
		return nil
	}
	return controllers.ReconcileDangling(ctx, s.Loopback())
}

// priorityInterval is upstream's.
const priorityInterval = time.Minute

// upstream are controllers of kube-controller-manager's.
func (s *Server) upstream() *controllers.Upstream {
	signing := s.config.ClusterSigning
	signing.ServerCA = func() (cert, key string, done func(), err error) { return s.keys.Load().CAFiles() }
	return controllers.NewUpstream(controllers.UpstreamConfig{
		Controllers: s.config.Controllers, RootCA: s.keys.Load().CAPEM, Tokens: s.authn.LegacyIssuer, Signing: signing,
		NamespaceDelay: s.config.NamespaceDelay, Dangling: !s.config.Fairness.Disabled,
		QuotaObjects: s.quotas.Objects, LeaderElection: len(s.config.Etcd.Servers) > 0, Logger: s.config.Logger,
	})
}

// every runs do again and again until ctx is done, and says what it means that it fails.
func (s *Server) every(ctx context.Context, period time.Duration, failure string, do func() error) {
	s.loops.Go(serving.Every(ctx, s.config.Clock, period, func() {
		if err := do(); err != nil && ctx.Err() == nil {
			s.config.Logger.Error(failure, "error", err)
		}
	}))
}

// path of a file or folder in the data directory; "" where there is none.
func (s *Server) path(name string) string {
	if s.config.DataDir == "" {
		return ""
	}
	return filepath.Join(s.config.DataDir, name)
}

// open connects to etcd, or takes the data directory, or refuses because another server has it.
func (s *Server) open(ctx context.Context) (storage.Store, error) {
	if s.config.DataDir != "" {
		if err := os.MkdirAll(s.config.DataDir, 0o700); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		warnings, err := ownership.Folders(s.config.DataDir, "pki", "store")
		if err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		for _, warning := range warnings {
			s.config.Logger.Warn("the data directory is open to others: " + warning)
		}
	}
	if len(s.config.Etcd.Servers) > 0 {
		return s.openEtcd(ctx)
	}
	store, err := embedded.Open(embedded.Options{
		Dir:          s.path("store"),
		CompactAfter: s.config.CompactionInterval,
		HistoryBytes: s.config.HistoryBytes,
		Reserve:      s.config.DiskReserve,
		DiskUsage:    s.config.DiskUsage,
		Health:       &s.disk,
		Logger:       s.config.Logger,

		AcceptLossAfter: s.config.AcceptLossAfter,
	})
	if err != nil {
		return nil, err // and not a nil of that type
	}
	return store, nil
}

// openEtcd connects to etcd.
func (s *Server) openEtcd(ctx context.Context) (storage.Store, error) {
	c := &s.config.Etcd
	store, err := etcd.Open(ctx, etcd.Options{
		Servers: c.Servers, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile,
		Dial: s.ways.To(egressselector.Etcd),
		Base: "/registry/", Prefix: path.Join("/", c.Prefix) + "/",
		CompactAfter: s.config.CompactionInterval,
		Logger:       s.config.Logger,
	})
	if err != nil {
		return nil, err
	}
	return store, nil
}

// connect puts the parts together, from the store up to the handler.
func (s *Server) connect(ctx context.Context) (err error) {
	out := s.dialer()
	s.config.Authentication.Dial, s.config.Authorization.Dial = out.DialContext, out.DialContext
	s.config.Authentication.EgressLookup = s.ways.Lookup
	if err := s.openAudit(out.DialContext); err != nil {
		return err
	}
	if err := s.believe(); err != nil {
		return err
	}
	if err := s.decide(); err != nil {
		return err
	}
	if err := s.openWebhooks(out); err != nil {
		return err
	}
	if s.engine, err = s.openEngine(ctx, out); err != nil {
		return err
	}
	s.hooks.done(nil, hookStorage, hookCRDs)
	s.feed = s.engine.NewFeed()
	s.aggregate(out)
	s.hooks.done(nil, hookRegistration, hookDiscovery)
	if err := s.openNodes(out); err != nil {
		return err
	}
	s.handler = api.New(api.Config{
		Engine:         s.engine,
		Live:           append([]api.Check{{Name: "storage", Run: s.alive}}, s.checks()...),
		Ready:          append([]api.Check{{Name: "storage", Run: s.writable}}, s.checks()...),
		Gauges:         s.gauges(),
		Egress:         out.Metrics,
		RequestTimeout: s.config.RequestTimeout,
		MemoryBudget:   s.config.MemoryBudget,
		Authenticator:  access.NewAuthenticator(s.authn.Authentication),
		Issuer:         s.issuer(),
		Authorizer:     s.authorizer,
		Fairness:       flowcontrol.New(s.config.Fairness, s.store.Head, s.config.Clock),
		Aggregator:     s.aggregator,
		Connect: func(ctx context.Context, namespace, name string, options runtime.Object, fail func(http.ResponseWriter, *http.Request, error)) (http.Handler, error) {
			return s.nodes.Handler(ctx, namespace, name, options, fail)
		},
		Discovery:  discovery.Handler(s.engine.Live, s.aggregator.Discovery, s.addresses()),
		OpenAPI:    openapi.Handler(s.engine.Live, s.aggregator),
		EnableCBOR: s.config.EnableCBOR,
		Profiling:  s.config.Profiling,
		Audit:      s.audit.Audit,
	})
	s.http = serving.New(s.listener, s.handler, s.config.TLS.Config(s.certificates), s.config.OpenFiles, s.config.Logger)
	s.takeOver(s.engine.Live.Load())
	return nil
}

// openWebhooks makes what calls conversion webhooks.
func (s *Server) openWebhooks(out *egress.Dialer) error {
	from, warnings, err := credentials.ForConversion(s.config.ConversionKubeconfig)
	if err != nil {
		return fmt.Errorf("--conversion-webhook-kubeconfig: %w", err)
	}
	for _, warning := range warnings {
		s.config.Logger.Warn("--conversion-webhook-kubeconfig: " + warning)
	}
	s.webhooks = conversion.NewWebhooks(conversion.WebhookConfig{
		Timeout:     s.config.RequestTimeout,
		Report:      s.reachable.Report,
		Egress:      out,
		Credentials: from,
		WebhookOf: func(crd string) string {
			plural, group, _ := strings.Cut(crd, ".")
			if d := s.definition(group, plural); d != nil && d.Custom != nil {
				return d.Custom.Conversion.Webhook
			}
			return ""
		},
		Observe:      func(c conversion.Call) { s.handler.ObserveConversion(c) },
		Disconnected: func(webhook string) { s.engine.WebhookDisconnected(webhook) },
	})
	return nil
}

// openEngine returns once all that is stored is known.
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
		Kinds: func(live *resource.Live) []*resource.Definition {
			return kinds.Definitions(kinds.Config{
				Catalog: live.Current, Head: s.store.Head,
				EventTTL:   s.config.EventTTL,
				Authorizer: s.authorizer, Rules: s.authorizer, RoleRules: rbac.Resolver{Index: s.roles},
				Authenticator: s.authn.Tokens, Issuer: s.authn.Issuer, Audiences: s.authn.Audiences, MaxTokenExpiration: s.config.Authentication.Accounts.MaxExpiration,
				ServiceRanges:    s.config.ServiceClusterIPRanges,
				NodePorts:        s.config.ServiceNodePortRange,
				NoFieldSelectors: s.config.DisableFieldSelectors, UnguardedBindings: s.config.UnguardedBindings,
				AllowPrivileged: !s.config.DisallowPrivileged,
				StorageHealth:   s.writable,
				Enabled:         enabled,
			})
		},
		Admission:              admits,
		IgnoreSelectableFields: s.config.DisableFieldSelectors,
		Webhook:                s.webhooks.Convert, Generation: s.webhooks.Generation, RecheckEvery: s.config.ConversionRecheck,
		Failed: s.fail,
	})
}

// serves says that --runtime-config has not switched a kind off.
func (s *Server) serves(r schema.GroupVersionResource) bool {
	return s.engine.Live.Load().Find(r.Group, r.Version, r.Resource) != nil
}

// definition is that of a kind; nil if there is none.
func (s *Server) definition(group, plural string) *resource.Definition {
	return s.engine.Live.Load().Definition(group, plural)
}

// takeOver has what CRDs say of the work of a server that ran before put right.
func (s *Server) takeOver(catalog *resource.Catalog) {
	for d := range catalog.Definitions() {
		if d.Custom == nil {
			continue
		}
		crd := strings.TrimPrefix(d.Custom.Key, resource.CRDPrefix)
		if d.Custom.Migrating {
			s.migrating = append(s.migrating, crd)
		}
		if d.Custom.ConversionUnavailable {
			s.webhooks.HalfOpen(crd)
		}
	}
}

func (s *Server) serve() {
	if err := s.http.Serve(); err != nil {
		s.fail(err)
	}
}

// URL is where clients on this machine reach the server.
func (s *Server) URL() string { return serving.URL(s.listener.Addr()) }

// Loopback is for a client in this process: no connection, all rights, no rate limit.
func (s *Server) Loopback() *rest.Config {
	return &rest.Config{
		Host:      s.URL(),
		Transport: s.handler.Loopback(access.Loopback()),
		QPS:       -1,
		UserAgent: "trellis-loopback",
	}
}

// Failed is closed when the server cannot go on; Shutdown then says why.
func (s *Server) Failed() <-chan struct{} { return s.failed }

// Address is the IP address and port that the server listens on.
func (s *Server) Address() string { return s.listener.Addr().String() }
