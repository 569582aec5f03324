package extension

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/delegated"
	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/api"
	"github.com/trellis-k8s/trellis/internal/api/discovery"
	"github.com/trellis-k8s/trellis/internal/api/health"
	"github.com/trellis-k8s/trellis/internal/api/openapi"
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/ownership"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/serving"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/logstore"
)

// Config is the configuration of a server. Unset fields have the defaults of Main's flags, unless documented otherwise.
type Config struct {
	Kinds []Kind
	// DataDir is the directory of the stored objects. "" means that they are in memory.
	DataDir string
	// AcceptLossAfter permits the server to open a damaged data directory whose last intact revision is equal to this
	// value. 0 means that a damaged directory is an error.
	AcceptLossAfter int64
	// Address is the IP address and port to listen on. "" means 127.0.0.1:0, and port 0 selects a free port.
	Address string
	// CertFile and KeyFile hold the serving certificate. They are reloaded when they change. "" means a certificate of
	// a self-generated CA.
	CertFile, KeyFile string
	// Kubeconfig is the path of a kubeconfig for the main server. "" means the in-cluster configuration of a Pod.
	// AuthenticationKubeconfig is used instead for authentication requests, and AuthorizationKubeconfig for
	// authorization requests, unless they are "".
	Kubeconfig, AuthenticationKubeconfig, AuthorizationKubeconfig string
	// Authentication replaces authentication settings that the main server publishes.
	Authentication delegated.Config
	// Logger receives messages for the operator. nil means that they are discarded.
	Logger *slog.Logger

	retry *wait.Backoff    // retries of requests to the main server; nil means the default of k8s.io/apiserver
	clock clock.WithTicker // for the renewal of the server's own certificate; nil means the real clock
}

// Server is a running server.
type Server struct {
	config     Config
	disk       embedded.Health
	store      *logstore.Store
	listener   net.Listener
	keys       serving.Keys
	engine     *engine.Engine
	handler    *api.Server
	http       *serving.Server
	namespaces *namespaces

	running context.Context // until Shutdown
	stop    context.CancelFunc
	loops   sync.WaitGroup
	closed  func() error // close, run at most once

	failed context.Context // done when the server has failed; its cause is the first fatal error
	fail   context.CancelCauseFunc
}

// Start starts a server. It fails if a kind is invalid, or if it cannot read the authentication settings from the main
// server. The caller must stop the server with Shutdown. ctx bounds only the start.
func Start(ctx context.Context, c Config) (*Server, error) {
	s := &Server{config: c}
	s.failed, s.fail = context.WithCancelCause(context.Background())
	s.config.Address = cmp.Or(c.Address, "127.0.0.1:0")
	if c.Logger == nil {
		s.config.Logger = slog.New(slog.DiscardHandler)
	}
	if c.clock == nil {
		s.config.clock = clock.RealClock{}
	}
	if c.retry == nil {
		s.config.retry = &delegated.Backoff
	}
	s.running, s.stop = context.WithCancel(context.Background())
	s.closed = sync.OnceValue(s.close)
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.Shutdown())
	}
	return s, nil
}

func (s *Server) start(ctx context.Context) error {
	kinds, plugin, err := compile(s.config.Kinds)
	if err != nil {
		return err
	}
	certificates, err := serving.NewCertificates(serving.TLS{CertFile: s.config.CertFile, KeyFile: s.config.KeyFile})
	if err != nil {
		return err
	}
	authentication, authorizer, err := s.delegate(ctx)
	if err != nil {
		return err
	}
	if err := s.open(ctx, kinds, plugin); err != nil {
		return err
	}
	if s.listener, err = serving.Listen(s.config.Address); err != nil {
		return err
	}
	clock := s.config.clock
	if err := s.keys.Make(certificates, "", serving.Hosts(s.listener.Addr()), clock.Now()); err != nil {
		return err
	}
	certificates.Run(s.running)
	s.loops.Go(serving.Every(s.running, clock, serving.RenewalCheck, func() {
		if err := s.keys.Renew(clock.Now()); err != nil {
			s.config.Logger.Error("cannot renew the server's own certificate", "error", err)
		}
	}))
	s.handler = api.New(api.Config{
		Engine: s.engine,
		Live:   []health.Check{{Name: "storage", Run: s.store.Failed}},
		Ready:  []health.Check{{Name: "storage", Run: s.disk.Err}, {Name: "namespaces", Run: s.namespaces.ready}},

		Authenticator: access.NewAuthenticator(authentication),
		Authorizer:    authorizer,
		Discovery: discovery.Handler(s.engine.Live, nil,
			discovery.Addresses{Default: strings.TrimPrefix(s.URL(), "https://")}),
		OpenAPI: openapi.Handler(s.engine.Live, nil),
	})
	s.http = serving.New(s.listener, s.handler, certificates.Config, 0, s.config.Logger)
	s.loops.Go(func() { s.namespaces.watch.RunWithContext(s.running) })
	s.loops.Go(func() {
		if err := s.http.Serve(); err != nil {
			s.fail(err)
		}
	})
	return nil
}

// open opens the store and the engine.
func (s *Server) open(ctx context.Context, kinds []*resource.Definition, plugin hooks) (err error) {
	dir := s.config.DataDir
	if dir != "" {
		if err := s.checkDirectory(dir); err != nil {
			return err
		}
		dir = filepath.Join(dir, "store")
	}
	o := embedded.Options{Dir: dir, Health: &s.disk, Logger: s.config.Logger, AcceptLossAfter: s.config.AcceptLossAfter}
	if s.store, err = embedded.Open(o); err != nil {
		return err
	}
	s.engine, err = engine.Open(ctx, engine.Config{
		Store:     s.store,
		Kinds:     func(*catalog.Live) []*resource.Definition { return kinds },
		Admission: admission.Plugins{s.namespaces, plugin},
		Failed:    s.fail,
	})
	return err
}

// checkDirectory creates the data directory if necessary. It returns an error if other users can change the directory.
func (s *Server) checkDirectory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	warnings, err := ownership.CheckDirectories(dir, "store")
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	for _, warning := range warnings {
		s.config.Logger.Warn("other users can change the data directory: " + warning)
	}
	return nil
}

// delegate creates the authentication and the authorizer that send requests to the main server.
func (s *Server) delegate(ctx context.Context) (authentication access.Authentication, authorizer access.Authorizer,
	err error) {
	clients := map[string]kubernetes.Interface{}
	for purpose, kubeconfig := range map[string]string{"authentication": s.config.AuthenticationKubeconfig,
		"authorization": s.config.AuthorizationKubeconfig} {
		c, err := s.mainServer(kubeconfig)
		if err == nil {
			clients[purpose], err = kubernetes.NewForConfig(c)
		}
		if err != nil {
			return authentication, nil, fmt.Errorf("client for %s: %w", purpose, err)
		}
	}
	if authentication, err = delegated.NewAuthentication(ctx, s.running, s.config.Authentication,
		clients["authentication"], *s.config.retry, s.config.Logger); err != nil {
		return authentication, nil, err
	}
	if authorizer, err = delegated.NewAuthorizer(clients["authorization"], *s.config.retry); err != nil {
		return authentication, nil, err
	}
	c, err := s.mainServer("")
	if err == nil {
		s.namespaces, err = newNamespaces(c)
	}
	return authentication, authorizer, err
}

// mainServer returns the configuration of a client of the main server. It has the rate limits of k8s.io/apiserver.
func (s *Server) mainServer(kubeconfig string) (*rest.Config, error) {
	c, err := rest.InClusterConfig()
	if file := cmp.Or(kubeconfig, s.config.Kubeconfig); file != "" {
		c, err = clientcmd.BuildConfigFromFlags("", file)
	}
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("--kubeconfig is not set, and the process does not run in a Pod")
	}
	if err != nil {
		return nil, err
	}
	c.QPS, c.Burst = 200, 400
	return c, nil
}

// URL returns the URL at which clients on this machine reach the server.
func (s *Server) URL() string { return serving.URL(s.listener.Addr()) }

// CA returns the self-generated CA in PEM. This CA signs the serving certificate if Config.CertFile is "".
func (s *Server) CA() []byte { return s.keys.Load().CAPEM }

// Failed returns a channel that is closed when the server has failed. Shutdown then returns the reason.
func (s *Server) Failed() <-chan struct{} { return s.failed.Done() }

// Shutdown stops accepting requests, waits for the requests in flight, ends the watches and closes the store. It may be
// called more than once. It returns the error that stopped the server or that occurred during the shutdown, if any.
func (s *Server) Shutdown() error { return s.closed() }

func (s *Server) close() (err error) {
	switch {
	case s.http != nil:
		err = s.http.Drain(s.handler.Drain)
	case s.listener != nil:
		err = s.listener.Close()
	}
	s.stop()
	s.loops.Wait()
	if s.engine != nil {
		s.engine.Close()
	}
	if s.store != nil {
		err = errors.Join(err, s.store.Close())
	}
	return errors.Join(context.Cause(s.failed), err)
}
