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

// Config configures a server: its Options, listeners and related services.
type Config struct {
	Options
	Mode Mode

	Socket          string // Unix socket for API servers; "" means that they connect to FrontendAddress
	ReplaceSocket   bool   // remove a stale socket
	FrontendAddress string // host:port
	FrontendTLS     TLS

	AgentAddress string
	AgentTLS     TLS

	AdminAddress, HealthAddress    string
	Profiling, ContentionProfiling bool
	Lease                          *Lease        // nil means that the server has no Lease
	GracePeriod                    time.Duration // for open connections during shutdown
}

// running is a server with open listeners.
type running struct {
	Config
	server            *Server
	agents, frontends net.Listener
	admin, health     *http.Server
	draining          atomic.Bool
	stopReload        context.CancelFunc // stops reloading the certificate files
}

// Run serves until ctx is done or a listener fails. It then drains for up to GracePeriod. If a flag of "trellis
// konnectivity server" causes an error, the error contains the flag.
func Run(ctx context.Context, c Config) error {
	r, err := start(c)
	if err != nil {
		return err
	}
	return r.run(ctx)
}

// start opens the listeners.
func start(c Config) (_ *running, err error) {
	reloadCtx, stopReload := context.WithCancel(context.Background())
	r := &running{Config: c, server: New(c.Options), stopReload: stopReload}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.agents, err = listenTLS(reloadCtx, "agent-port", c.AgentAddress, "cluster", c.AgentTLS, "h2"); err != nil {
		return nil, err
	}
	if r.frontends, err = c.listenFrontends(reloadCtx); err != nil {
		return nil, err
	}
	registry := r.server.metrics.registry
	adminHandler := admin.AdminHandler(registry, c.Profiling, c.ContentionProfiling)
	if r.admin, err = admin.Serve("admin-port", c.AdminAddress, adminHandler); err != nil {
		return nil, err
	}
	r.health, err = admin.Serve("health-port", c.HealthAddress, admin.HealthHandler(registry, r.ready))
	return r, err
}

func (c Config) listenFrontends(ctx context.Context) (net.Listener, error) {
	switch {
	case c.Socket != "":
		return listenSocket(c.Socket, c.ReplaceSocket)
	case c.Mode == ModeHTTPConnect:
		return listenTLS(ctx, "server-port", c.FrontendAddress, "server", c.FrontendTLS, "http/1.1")
	}
	return listenTLS(ctx, "server-port", c.FrontendAddress, "server", c.FrontendTLS, "h2")
}

func listenTLS(ctx context.Context, flag, address, side string, t TLS, protocol string) (net.Listener, error) {
	config, err := t.config(ctx, side, protocol)
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
			_ = l.Close() // most listeners are already closed by Shutdown
		}
	}
	for _, s := range []*http.Server{r.admin, r.health} {
		if s != nil {
			_ = s.Close()
		}
	}
}

// run serves and drains. On shutdown it deletes the Lease first, so that agents no longer count the server.
func (r *running) run(ctx context.Context) (err error) {
	defer r.close()
	failed := make(chan error, 2) // one for each listener
	go func() { failed <- r.server.ServeAgents(r.agents) }()
	go func() { failed <- r.server.ServeFrontends(r.frontends, r.Mode) }()
	leaseCtx, deleteLease := context.WithCancel(context.Background())
	defer deleteLease()
	var lease sync.WaitGroup
	if r.Lease != nil {
		manager := &leaseManager{
			Lease:   r.Lease.withPort(r.agents.Addr().(*net.TCPAddr).Port),
			metrics: r.server.metrics,
			logger:  r.Logger,
			clock:   clock.RealClock{},
		}
		lease.Go(func() { manager.run(leaseCtx, r.ID) })
	}
	r.Logger.Info("serving", "id", r.ID, "agents", r.agents.Addr(), "mode", r.Mode,
		"frontends", r.frontends.Addr(), "admin", r.admin.Addr, "health", r.health.Addr)
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	r.Logger.Info("shutting down", "gracePeriod", r.GracePeriod)
	r.draining.Store(true)
	deleteLease()
	graceCtx, cancel := context.WithTimeout(context.Background(), r.GracePeriod)
	defer cancel()
	r.server.Shutdown(graceCtx)
	lease.Wait()
	return err
}

// ready reports at the health port whether connections can be opened through the server, or why not.
func (r *running) ready(w http.ResponseWriter, _ *http.Request) {
	reason := "ok"
	switch {
	case r.draining.Load():
		reason = "the server is shutting down"
	case !r.server.Ready():
		reason = "no connection to any proxy agent" // message of the reference server
	}
	if reason != "ok" {
		w.WriteHeader(http.StatusInternalServerError)
	}
	_, _ = io.WriteString(w, reason)
}
