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
	"k8s.io/client-go/kubernetes"
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
	"github.com/trellis-k8s/trellis/internal/controllers/apiservice"
	"github.com/trellis-k8s/trellis/internal/controllers/bootstrap"
	"github.com/trellis-k8s/trellis/internal/controllers/crd"
	"github.com/trellis-k8s/trellis/internal/controllers/upstream"
	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/egress/credentials"
	"github.com/trellis-k8s/trellis/internal/egress/selector"
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/engine/read"
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
	config         Config
	egressSelector *selector.Selector // dialers for each kind of destination; some use a tunnel
	listener       net.Listener
	store          storage.Store
	disk           embedded.Health // health of the disk of the embedded store
	keys           serving.Keys
	certificates   *serving.Certificates
	authn          *authn.Authenticators
	roles          *rbac.Index
	authorizer     *authz.Authorizers
	audit          auditing
	// proxyClient and kubeletClient are the client certificates that flags configure. nil means a certificate of the
	// server's own CA.
	proxyClient, kubeletClient *dynamiccertificates.DynamicCertKeyPairContent
	handler                    *api.Server
	quotas                     *plugins.Quotas
	closeWebhooks              func() // closes the admission webhooks' connections
	feed                       *read.Feed
	webhooks                   *conversion.Webhooks // nil until connect, like engine
	engine                     *engine.Engine
	// reachability tracks the conversion webhooks that cannot be reached. apiServices tracks the availability of
	// APIServices.
	reachability *crd.Reachability
	apiServices  *apiservice.Controller
	client       kubernetes.Interface    // a client of this server; nil until connect
	aggregator   *aggregation.Aggregator // nil until connect, like nodes
	nodes        *nodes.Proxy
	migrating    []string // names of the CRDs whose storage migration an earlier server did not finish
	http         *serving.Server
	stopping     chan struct{} // closed when the shutdown begins
	drained      chan struct{} // closed when the last request has ended
	hooks        hooks
	failed       chan struct{}
	failOnce     sync.Once
	failure      error // why the server failed; set before failed is closed

	// The loops are the controllers and other periodic goroutines. They are clients of the server and stop before its
	// requests are drained.
	loops          sync.WaitGroup
	stopLoops      context.CancelFunc
	authReload     sync.WaitGroup // goroutine that reloads authentication files
	stopAuthReload context.CancelFunc
	closed         func() error // close, run at most once
}

// Start starts a server. When it returns, the server serves every stored kind. The caller must stop the server with
// Shutdown. ctx bounds only the start.
func Start(ctx context.Context, c Config) (*Server, error) {
	s := &Server{config: c.withDefaults(), failed: make(chan struct{}), stopping: make(chan struct{}),
		drained: make(chan struct{}), stopLoops: func() {}, closeWebhooks: func() {}, stopAuthReload: func() {},
		reachability: crd.NewReachability()}
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
	if s.egressSelector, err = selector.Open(s.config.EgressSelectorFile); err != nil {
		return fmt.Errorf("--egress-selector-config-file: %w", err)
	}
	if s.store, err = s.openStore(ctx); err != nil {
		return err
	}
	if s.listener, err = serving.Listen(s.config.Address); err != nil {
		return err
	}
	if err := s.openKeys(); err != nil {
		return err
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	loopback := s.Loopback()
	loopback.WarningHandler = rest.NoWarnings{}
	if s.client, err = kubernetes.NewForConfig(loopback); err != nil {
		return fmt.Errorf("create client for default objects and controllers: %w", err)
	}
	if err := s.systemNamespaces(ctx); err != nil {
		return fmt.Errorf("create system namespaces: %w", err)
	}
	s.hooks.done(nil, hookNamespaces)
	addresses := make(chan error, 1)
	go func() {
		if !s.serves(networkingv1.SchemeGroupVersion.WithResource("servicecidrs")) {
			addresses <- nil
			return
		}
		addresses <- errors.Join(
			bootstrap.EnsureServiceCIDR(ctx, s.client.NetworkingV1(), s.config.ServiceClusterIPRanges),
			s.repairAddresses(ctx))
	}()
	err = bootstrap.Reconcile(ctx, s.client, controllers.Running(s.config.Controllers))
	if err := errors.Join(err, <-addresses); err != nil {
		return fmt.Errorf("bootstrap default objects and Service addresses: %w", err)
	}
	s.hooks.done(nil, hookRoles, hookPriorityClasses, hookFairnessProducer, hookAddresses)
	conditions := make(chan error, 1)
	go func() { conditions <- s.writeDangling(ctx) }()
	if err := errors.Join(s.publishService(ctx), <-conditions); err != nil {
		return fmt.Errorf("publish the Service kubernetes and the conditions of FlowSchemas: %w", err)
	}
	s.hooks.done(nil, hookKubernetesService, hookFairnessConsumer)
	go s.serve()
	s.runLoops()
	return s.writeKubeconfig()
}

func (s *Server) runLoops() {
	ctx, cancel := context.WithCancel(context.Background())
	s.stopLoops = cancel
	ctx = upstream.WithLogger(ctx, s.config.Logger)
	s.loops.Go(func() {
		if err := s.feed.Run(ctx); ctx.Err() == nil {
			s.fail(fmt.Errorf("send changes to the controllers: %w", err))
		}
	})
	s.loops.Go(func() { s.authorizer.Run(ctx, s.report) })
	s.certificates.Run(ctx)
	s.loops.Go(func() { s.egressSelector.Run(ctx) })
	for _, certificate := range []*dynamiccertificates.DynamicCertKeyPairContent{s.proxyClient, s.kubeletClient} {
		if certificate != nil {
			s.loops.Go(func() { certificate.Run(ctx, 1) })
		}
	}
	s.runPeriodically(ctx, serving.RenewalCheck, "cannot renew the server's own certificates", s.renewKeys)
	s.runPeriodically(ctx, priorityInterval, "cannot reconcile the flow control objects",
		func() error { return bootstrap.ReconcileFlowControl(ctx, s.client) })
	s.runPeriodically(ctx, namespacesInterval, "cannot create the system namespaces",
		func() error { return s.systemNamespaces(ctx) })
	s.runControllers(ctx)
}

// runControllers starts the controllers, which run until ctx is done.
func (s *Server) runControllers(ctx context.Context) {
	c := controllers.Config{
		Client: s.client, Feed: s.feed.Follow, APIServices: s.apiServices, Reachability: s.reachability,
		Dangling: !s.config.Fairness.Disabled, NamespaceDelay: s.config.NamespaceDelay,
		AutoMigrate: s.config.AutoMigrateStorage, Migrating: s.migrating,
		Upstream: upstream.Config{
			Controllers: s.config.Controllers, RootCA: s.keys.Load().CAPEM, Tokens: s.authn.LegacyIssuer,
			Signing: s.config.ClusterSigning, QuotaObjects: s.quotas.Objects,
			LeaderElection: len(s.config.Etcd.Servers) > 0, Logger: s.config.Logger,
		},
	}
	c.Upstream.Signing.ServerCA = func() (cert, key string, done func(), err error) { return s.keys.Load().CAFiles() }
	if s.serves(networkingv1.SchemeGroupVersion.WithResource("servicecidrs")) {
		c.ServiceCIDRs = s.config.ServiceClusterIPRanges
		s.runPeriodically(ctx, repairInterval, "cannot repair the addresses of Services",
			func() error { return s.repairAddresses(ctx) })
	}
	trust, err := s.trustInfo()
	if err != nil {
		s.config.Logger.Error("cannot run a controller", "error", err)
	} else {
		c.Trust = &trust
	}
	s.hooks.done(err, hookTrust)
	all := []string{hookCRDControllers, hookServiceCIDRs, hookLocalAvailable, hookRemoteAvailable,
		hookAutoregistration, hookTokenTracking}
	s.hooks.done(nil, all...)
	s.loops.Go(func() {
		if err := controllers.Run(ctx, s.Loopback(), c); err != nil {
			s.config.Logger.Error("cannot run a controller", "error", err)
			s.hooks.done(err, all...)
		}
	})
}

// writeDangling updates the condition Dangling of all FlowSchemas. It does nothing if API Priority and Fairness is
// disabled.
func (s *Server) writeDangling(ctx context.Context) error {
	if s.config.Fairness.Disabled {
		return nil
	}
	return bootstrap.WriteDangling(ctx, s.client.FlowcontrolV1())
}

// priorityInterval is the interval at which the flow control objects are reconciled, as in kube-apiserver.
const priorityInterval = time.Minute

// runPeriodically calls the function do periodically until ctx is done. If the function fails, it logs its error with
// the message in failure.
func (s *Server) runPeriodically(ctx context.Context, period time.Duration, failure string, do func() error) {
	s.loops.Go(serving.Every(ctx, s.config.Clock, period, func() {
		if err := do(); err != nil && ctx.Err() == nil {
			s.config.Logger.Error(failure, "error", err)
		}
	}))
}

// path returns the path of a file in the data directory, or "" if there is no data directory.
func (s *Server) path(name string) string {
	if s.config.DataDir == "" {
		return ""
	}
	return filepath.Join(s.config.DataDir, name)
}

// openStore connects to etcd or opens the data directory. It fails if another server uses the data directory.
func (s *Server) openStore(ctx context.Context) (storage.Store, error) {
	if s.config.DataDir != "" {
		if err := os.MkdirAll(s.config.DataDir, 0o700); err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		warnings, err := ownership.CheckDirectories(s.config.DataDir, "pki", "store")
		if err != nil {
			return nil, fmt.Errorf("data directory: %w", err)
		}
		for _, warning := range warnings {
			s.config.Logger.Warn("other users can change the data directory: " + warning)
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
		return nil, err // a nil *embedded.Store would be a non-nil interface
	}
	return store, nil
}

// openEtcd connects to etcd.
func (s *Server) openEtcd(ctx context.Context) (storage.Store, error) {
	cluster := s.config.Etcd
	cluster.Prefix = path.Join("/", cluster.Prefix) + "/"
	store, err := etcd.Open(ctx, etcd.Options{
		Cluster: cluster, Base: "/registry/",
		Dial:         s.egressSelector.Dialer(egressselector.Etcd),
		CompactAfter: s.config.CompactionInterval,
		Logger:       s.config.Logger,
	})
	if err != nil {
		return nil, err
	}
	return store, nil
}

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
	if err := s.openAuthorization(); err != nil {
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
	s.openAggregation(out)
	s.hooks.done(nil, hookRegistration, hookDiscovery)
	if err := s.openNodes(out); err != nil {
		return err
	}
	s.handler = api.New(api.Config{
		Engine:         s.engine,
		Live:           append([]api.Check{{Name: "storage", Run: s.checkAlive}}, s.checks()...),
		Ready:          append([]api.Check{{Name: "storage", Run: s.checkWritable}}, s.checks()...),
		Gauges:         s.gauges(),
		Egress:         out.Metrics,
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
	})
	s.http = serving.New(s.listener, s.handler, s.certificates.Config, s.config.OpenFiles,
		s.config.Logger)
	s.resumeFromConditions(s.engine.Live.Load())
	return nil
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
	s.webhooks = conversion.NewWebhooks(conversion.WebhookConfig{
		Timeout:     s.config.RequestTimeout,
		Report:      s.reachability.Report,
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
		Kinds: func(live *resource.Live) []*resource.Definition {
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

// serves reports whether the server serves a resource, that is whether --runtime-config does not disable it.
func (s *Server) serves(r schema.GroupVersionResource) bool {
	return s.engine.Live.Load().Find(r.Group, r.Version, r.Resource) != nil
}

// definition returns the definition of a resource, or nil if there is none.
func (s *Server) definition(group, plural string) *resource.Definition {
	return s.engine.Live.Load().Definition(group, plural)
}

// resumeFromConditions continues work that an earlier server recorded in the conditions of CRDs: unfinished storage
// migrations and unreachable conversion webhooks.
func (s *Server) resumeFromConditions(catalog *resource.Catalog) {
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

// URL returns the URL at which clients on this machine reach the server.
func (s *Server) URL() string { return serving.URL(s.listener.Addr()) }

// Loopback returns the configuration of a client in this process. The client uses no network connection, has all
// permissions and no rate limit.
func (s *Server) Loopback() *rest.Config {
	return &rest.Config{
		Host:      s.URL(),
		Transport: s.handler.Loopback(access.Loopback()),
		QPS:       -1,
		UserAgent: "trellis-loopback",
	}
}

// Failed returns a channel that is closed when the server has failed. Shutdown then returns the reason.
func (s *Server) Failed() <-chan struct{} { return s.failed }

// Address returns the IP address and port that the server listens on.
func (s *Server) Address() string { return s.listener.Addr().String() }
