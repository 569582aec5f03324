package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/apiserver/endpoints"
	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/authn"
	"github.com/trellis-k8s/trellis/internal/access/authz"
	"github.com/trellis-k8s/trellis/internal/access/rbac"
	"github.com/trellis-k8s/trellis/internal/admission/plugins"
	"github.com/trellis-k8s/trellis/internal/aggregation"
	"github.com/trellis-k8s/trellis/internal/api"
	"github.com/trellis-k8s/trellis/internal/api/metrics"
	"github.com/trellis-k8s/trellis/internal/controllers"
	"github.com/trellis-k8s/trellis/internal/controllers/apiservice"
	"github.com/trellis-k8s/trellis/internal/controllers/bootstrap"
	"github.com/trellis-k8s/trellis/internal/controllers/crd"
	"github.com/trellis-k8s/trellis/internal/controllers/upstream"
	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/egress/selector"
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/proxy/nodes"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/serving"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
	"github.com/trellis-k8s/trellis/internal/storage/etcd"
)

// Server is a running API server. Its parts stand in the group of the phase of the start that creates them. They are
// unset until then.
type Server struct {
	config Config
	opened
	connected
	running
	shutdown
}

// opened holds what the phase open creates: the files, the listener and the store.
type opened struct {
	egressSelector *selector.Selector // dialers for each kind of destination; some use a tunnel
	listener       net.Listener
	store          storage.Store
	replica        *storage.Replica   // the store's state in memory
	etcd           *etcd.Store        // the store, if it is in etcd; otherwise nil
	barriers       *metrics.Durations // waits of writes for other servers; nil if the store is not in etcd
	disk           embedded.Health    // health of the disk of the embedded store
	keys           serving.Keys
	certificates   *serving.Certificates
	// proxyClient and kubeletClient are the client certificates that flags configure. nil means a certificate of the
	// server's own CA.
	proxyClient, kubeletClient *dynamiccertificates.DynamicCertKeyPairContent
}

// connected holds what the phase connect creates, from the store up to the HTTP server.
type connected struct {
	audit         auditing
	authn         *authn.Authenticators
	roles         *rbac.Index
	authorizer    *authz.Authorizers
	quotas        *plugins.Quotas
	closeWebhooks func() // closes the admission webhooks' connections
	webhooks      *conversion.Webhooks
	engine        *engine.Engine
	feed          *read.Feed
	// reachability tracks the conversion webhooks that cannot be reached. apiServices tracks the availability of
	// APIServices.
	reachability *crd.Reachability
	apiServices  *apiservice.Controller
	aggregator   *aggregation.Aggregator
	nodes        *nodes.Proxy
	handler      *api.Server
	http         *serving.Server
	client       kubernetes.Interface // a client of this server
	// presence is a client for the objects that announce this server. Its timeout limits the delay of a shutdown.
	presence  kubernetes.Interface
	endpoints *endpoints.Publisher
}

// running holds the goroutines of the server and the start tasks that are done.
type running struct {
	hooks hooks
	// The loops are the controllers and other periodic goroutines. They are clients of the server and stop before its
	// requests are drained.
	loops          sync.WaitGroup
	stopLoops      context.CancelFunc
	authReload     sync.WaitGroup // goroutine that reloads authentication files
	stopAuthReload context.CancelFunc
}

// shutdown holds the signals of the end of the server.
type shutdown struct {
	failed   context.Context // done when the server has failed; its cause is the first fatal error
	fail     context.CancelCauseFunc
	unready  chan struct{} // closed when the shutdown begins
	stopping chan struct{} // closed when the server stops to accept requests
	drained  chan struct{} // closed when the last request has ended
	closed   func() error  // close, run at most once
}

// Start starts a server. When it returns, the server serves every stored kind. The caller must stop the server with
// Shutdown. ctx bounds only the start.
func Start(ctx context.Context, c Config) (*Server, error) {
	s := &Server{config: c.withDefaults()}
	s.stopLoops, s.closeWebhooks, s.stopAuthReload = func() {}, func() {}, func() {}
	s.failed, s.fail = context.WithCancelCause(context.Background())
	s.unready, s.stopping, s.drained = make(chan struct{}), make(chan struct{}), make(chan struct{})
	s.closed = sync.OnceValue(s.close)
	for _, phase := range []func(context.Context) error{s.open, s.connect, s.bootstrap, s.run} {
		if err := phase(ctx); err != nil {
			return nil, errors.Join(err, s.Shutdown())
		}
	}
	return s, nil
}

// bootstrap creates the objects that each cluster has, in the same way as a client.
func (s *Server) bootstrap(ctx context.Context) error {
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
	err := bootstrap.Reconcile(ctx, s.client, controllers.Running(s.config.Controllers))
	if err := errors.Join(err, <-addresses); err != nil {
		return fmt.Errorf("bootstrap default objects and Service addresses: %w", err)
	}
	s.hooks.done(nil, hookRoles, hookPriorityClasses, hookFairnessProducer, hookAddresses)
	conditions := make(chan error, 1)
	go func() { conditions <- s.writeDangling(ctx) }()
	if err := errors.Join(s.endpoints.Start(ctx), <-conditions); err != nil {
		return fmt.Errorf("publish the Service kubernetes and the conditions of FlowSchemas: %w", err)
	}
	s.hooks.done(nil, hookKubernetesService, hookFairnessConsumer)
	return nil
}

// runControllers starts the controllers, which run until ctx is done.
func (s *Server) runControllers(ctx context.Context) {
	c := controllers.Config{
		Client: s.client, Feed: s.feed.Follow, APIServices: s.apiServices, Reachability: s.reachability,
		Dangling: !s.config.Fairness.Disabled, NamespaceDelay: s.config.NamespaceDelay,
		AutoMigrate: s.config.AutoMigrateStorage, Migrating: s.migrating,
		LeaderElection: s.etcd != nil,
		Upstream: upstream.Config{
			Controllers: s.config.Controllers, RootCA: s.keys.Load().CAPEM, Tokens: s.authn.LegacyIssuer,
			Signing: s.config.ClusterSigning, QuotaObjects: s.quotas.Objects,
			Logger: s.config.Logger,
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

// serves reports whether the server serves a resource, that is whether --runtime-config does not disable it.
func (s *Server) serves(r schema.GroupVersionResource) bool {
	return s.engine.Live.Load().Find(r.Group, r.Version, r.Resource) != nil
}

// definition returns the definition of a resource, or nil if there is none.
func (s *Server) definition(group, plural string) *resource.Definition {
	return s.engine.Live.Load().Definition(group, plural)
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
func (s *Server) Failed() <-chan struct{} { return s.failed.Done() }

// Address returns the IP address and port that the server listens on.
func (s *Server) Address() string { return s.listener.Addr().String() }
