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
	"github.com/trellis-k8s/trellis/internal/api/openapi"
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/ownership"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/serving"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
)

// Config is all that a server can be told. What is left out is as Main's flags have it.
type Config struct {
	Kinds []Kind
	// DataDir is the folder that objects are kept in; "" keeps them in memory.
	DataDir string
	// AcceptLossAfter opens a folder that has lost revisions if the last one left is this; 0 refuses it.
	AcceptLossAfter int64
	// Address is the IP address and port to listen on; "" means 127.0.0.1:0, and port 0 picks a free one.
	Address string
	// CertFile and KeyFile are the certificate that the server shows, read again when they change; "": one of a CA of its own.
	CertFile, KeyFile string
	// Kubeconfig is the way to the main server; "" is that of a Pod. The others, where they are not "", are for asking whom to
	// believe, and who may do what.
	Kubeconfig, AuthenticationKubeconfig, AuthorizationKubeconfig string
	// Authentication is whom to believe, where it is not what the main server says.
	Authentication delegated.Config
	// Logger gets what an operator should know; nil discards it.
	Logger *slog.Logger

	retry *wait.Backoff    // of what is asked of the main server; nil: upstream's
	clock clock.WithTicker // by which its own certificate ages; nil: the machine's
}

// Server is a running server.
type Server struct {
	config     Config
	disk       embedded.Health
	store      *embedded.Store
	listener   net.Listener
	keys       serving.Keys
	engine     *engine.Engine
	handler    *api.Server
	http       *serving.Server
	namespaces *namespaces

	running context.Context // until Shutdown
	stop    context.CancelFunc
	loops   sync.WaitGroup
	closed  func() error // once

	failOnce sync.Once
	failed   chan struct{}
	failure  error // set before failed is closed
}

// Start serves. It fails where a kind is not sound, or where the main server does not say whom to believe. The caller ends the
// server with Shutdown; ctx only bounds the start.
func Start(ctx context.Context, c Config) (*Server, error) {
	s := &Server{config: c, failed: make(chan struct{})}
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
	kinds, asks, err := compile(s.config.Kinds)
	if err != nil {
		return err
	}
	certificates, err := serving.NewCertificates(s.tls())
	if err != nil {
		return err
	}
	authentication, authorizer, err := s.delegate(ctx)
	if err != nil {
		return err
	}
	if err := s.open(ctx, kinds, asks); err != nil {
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
			s.config.Logger.Error("the server's own certificate is not renewed", "error", err)
		}
	}))
	s.handler = api.New(api.Config{
		Engine: s.engine,
		Live:   []api.Check{{Name: "storage", Run: s.store.Failed}},
		Ready:  []api.Check{{Name: "storage", Run: s.disk.Err}, {Name: "namespaces", Run: s.namespaces.ready}},

		Authenticator: access.NewAuthenticator(authentication),
		Authorizer:    authorizer,
		Discovery:     discovery.Handler(s.engine.Live, nil, discovery.Addresses{Default: strings.TrimPrefix(s.URL(), "https://")}),
		OpenAPI:       openapi.Handler(s.engine.Live, nil),
	})
	s.http = serving.New(s.listener, s.handler, s.tls().Config(certificates), 0, s.config.Logger)
	s.loops.Go(func() { s.namespaces.watch.RunWithContext(s.running) })
	s.loops.Go(func() {
		if err := s.http.Serve(); err != nil {
			s.fail(err)
		}
	})
	return nil
}

func (s *Server) tls() serving.TLS {
	return serving.TLS{CertFile: s.config.CertFile, KeyFile: s.config.KeyFile}
}

// open opens the store, and the engine over it.
func (s *Server) open(ctx context.Context, kinds []*resource.Definition, asks hooks) (err error) {
	dir := s.config.DataDir
	if dir != "" {
		if err := s.checkFolder(dir); err != nil {
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
		Kinds:     func(*resource.Live) []*resource.Definition { return kinds },
		Admission: admission.Plugins{s.namespaces, asks},
		Failed:    s.fail,
	})
	return err
}

// checkFolder makes the data directory, and refuses one that other users can change.
func (s *Server) checkFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	warnings, err := ownership.Folders(dir, "store")
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	for _, warning := range warnings {
		s.config.Logger.Warn("the data directory is open to others: " + warning)
	}
	return nil
}

// delegate has the main server say whom to believe and who may do what.
func (s *Server) delegate(ctx context.Context) (authentication access.Authentication, authorizer access.Authorizer, err error) {
	clients := map[string]kubernetes.Interface{}
	for purpose, kubeconfig := range map[string]string{"authentication": s.config.AuthenticationKubeconfig, "authorization": s.config.AuthorizationKubeconfig} {
		c, err := s.mainServer(kubeconfig)
		if err == nil {
			clients[purpose], err = kubernetes.NewForConfig(c)
		}
		if err != nil {
			return authentication, nil, fmt.Errorf("client for %s: %w", purpose, err)
		}
	}
	if authentication, err = delegated.NewAuthentication(ctx, s.running, s.config.Authentication, clients["authentication"], *s.config.retry, s.config.Logger); err != nil {
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

// mainServer is for a client of the main server. Its limits are upstream's: by them, this server answers.
func (s *Server) mainServer(kubeconfig string) (*rest.Config, error) {
	c, err := rest.InClusterConfig()
	if file := cmp.Or(kubeconfig, s.config.Kubeconfig); file != "" {
		c, err = clientcmd.BuildConfigFromFlags("", file)
	}
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("there is no --kubeconfig, and this is no Pod of a cluster")
	}
	if err != nil {
		return nil, err
	}
	c.QPS, c.Burst = 200, 400
	return c, nil
}

// URL is where clients on this machine reach the server.
func (s *Server) URL() string { return serving.URL(s.listener.Addr()) }

// CA is the one, in PEM, that has signed the certificate which the server shows where it was given none.
func (s *Server) CA() []byte { return s.keys.Load().CAPEM }

// Failed is closed when the server cannot go on; Shutdown then says why.
func (s *Server) Failed() <-chan struct{} { return s.failed }

// fail records the first reason why the server cannot go on.
func (s *Server) fail(err error) {
	s.failOnce.Do(func() {
		s.failure = err
		close(s.failed)
	})
}

// Shutdown takes no new request, lets those in flight finish, ends the watches, and closes the store. It may be called more than
// once and returns what had failed, if anything.
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
	select {
	case <-s.failed:
		return errors.Join(s.failure, err)
	default:
		return err
	}
}
