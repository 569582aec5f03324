package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/konnectivity/admin"
	"github.com/trellis-k8s/trellis/internal/tlsbatch"
)

// Config is what a server is started with: its Options, and all that stands around it.
type Config struct {
	Options
	Mode Mode

	Socket          string // of fronts; "": they come by FrontAddress
	ReplaceSocket   bool   // one that is left over
	FrontendAddress string // host:port
	FrontendTLS     TLS

	AgentAddress string
	AgentTLS     TLS

	AdminAddress, HealthAddress    string
	Profiling, ContentionProfiling bool
	Lease                          *Lease        // nil: there is none
	GracePeriod                    time.Duration // for open connections at the end
}

// running is a server with its listeners open.
type running struct {
	Config
	server            *Server
	agents, frontends net.Listener
	admin, health     *http.Server
	draining          atomic.Bool
	stopReload        context.CancelFunc // following the files of certificates
}

// Run serves until ctx is done or something fails, then drains for up to the GracePeriod. Errors name the flag of trellis
// konnectivity server that leads to them.
func Run(ctx context.Context, c Config) error {
	r, err := start(c)
	if err != nil {
		return err
	}
	return r.run(ctx)
}

// start opens the ports.
func start(c Config) (_ *running, err error) {
	following, stop := context.WithCancel(context.Background())
	r := &running{Config: c, server: New(c.Options), stopReload: stop}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.agents, err = listenTLS(following, "agent-port", c.AgentAddress, "cluster", c.AgentTLS, "h2"); err != nil {
		return nil, err
	}
	if r.frontends, err = c.listenFrontends(following); err != nil {
		return nil, err
	}
	if r.admin, err = admin.Serve("admin-port", c.AdminAddress, admin.AdminHandler(r.server.metrics.registry, c.Profiling, c.ContentionProfiling)); err != nil {
		return nil, err
	}
	r.health, err = admin.Serve("health-port", c.HealthAddress, admin.HealthHandler(r.server.metrics.registry, r.ready))
	return r, err
}

func (c Config) listenFrontends(following context.Context) (net.Listener, error) {
	switch {
	case c.Socket != "":
		return listenSocket(c.Socket, c.ReplaceSocket)
	case c.Mode == ModeHTTPConnect:
		return listenTLS(following, "server-port", c.FrontendAddress, "server", c.FrontendTLS, "http/1.1")
	}
	return listenTLS(following, "server-port", c.FrontendAddress, "server", c.FrontendTLS, "h2")
}

func listenTLS(following context.Context, flag, address, side string, t TLS, protocol string) (net.Listener, error) {
	config, err := t.config(following, side, protocol)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w (choose another port or address)", flag, err)
	}
	return tls.NewListener(tlsbatch.Listener{Listener: l}, config), nil
}

func (r *running) close() {
	r.stopReload()
	for _, l := range []net.Listener{r.agents, r.frontends} {
		if l != nil {
			_ = l.Close() // most are closed by who serves them
		}
	}
	for _, s := range []*http.Server{r.admin, r.health} {
		if s != nil {
			_ = s.Close()
		}
	}
}

// run serves and drains. The Lease goes first, so that agents count the server no longer.
func (r *running) run(ctx context.Context) (err error) {
	defer r.close()
	failed := make(chan error, 2) // one of each
	go func() { failed <- r.server.ServeAgents(r.agents) }()
	go func() { failed <- r.server.ServeFrontends(r.frontends, r.Mode) }()
	published, withdraw := context.WithCancel(context.Background())
	defer withdraw()
	var lease sync.WaitGroup
	if r.Lease != nil {
		keeper := &leaseManager{Lease: r.Lease.withPort(r.agents.Addr().(*net.TCPAddr).Port), metrics: r.server.metrics, logger: r.Logger, clock: clock.RealClock{}}
		lease.Go(func() { keeper.run(published, r.ID) })
	}
	r.Logger.Info("serving", "id", r.ID, "agents", r.agents.Addr(), "mode", r.Mode, "fronts", r.frontends.Addr(), "admin", r.admin.Addr, "health", r.health.Addr)
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	r.Logger.Info("shutting down", "patience", r.GracePeriod)
	r.draining.Store(true)
	withdraw()
	patience, cancel := context.WithTimeout(context.Background(), r.GracePeriod)
	defer cancel()
	r.server.Shutdown(patience)
	lease.Wait()
	return err
}

// ready says whether it can be dialled through the server, and why not.
func (r *running) ready(w http.ResponseWriter, _ *http.Request) {
	why := "ok"
	switch {
	case r.draining.Load():
		why = "the server is shutting down"
	case !r.server.Ready():
		why = "no connection to any proxy agent" // the reference's words
	}
	if why != "ok" {
		w.WriteHeader(http.StatusInternalServerError)
	}
	_, _ = io.WriteString(w, why)
}
