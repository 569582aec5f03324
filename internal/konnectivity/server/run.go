package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/gather"
)

// Config is what a server is started with: its Options, of which Run makes the Metrics, and all that stands around it.
type Config struct {
	Options
	Mode Mode

	Socket        string // of fronts; "": they come by FrontAddress
	ReplaceSocket bool   // one that is left over
	FrontAddress  string // host:port
	FrontTLS      TLS

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
	server                        *Server
	agents, fronts, admin, health net.Listener
	draining                      atomic.Bool
	stop                          context.CancelFunc // following the files of certificates
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

// start opens the listeners.
func start(c Config) (*running, error) {
	c.Metrics = cmp.Or(c.Metrics, NewMetrics())
	following, stop := context.WithCancel(context.Background())
	r := &running{Config: c, server: New(c.Options), stop: stop}
	for _, open := range []struct {
		l    *net.Listener
		with func() (net.Listener, error)
	}{
		{&r.agents, func() (net.Listener, error) {
			return listenTLS(following, "agent-port", c.AgentAddress, "cluster", c.AgentTLS, "h2")
		}},
		{&r.fronts, func() (net.Listener, error) { return c.listenFronts(following) }},
		{&r.admin, func() (net.Listener, error) { return listen("admin-port", c.AdminAddress) }},
		{&r.health, func() (net.Listener, error) { return listen("health-port", c.HealthAddress) }},
	} {
		l, err := open.with()
		if err != nil {
			r.close()
			return nil, err
		}
		*open.l = l
	}
	return r, nil
}

func (c Config) listenFronts(following context.Context) (net.Listener, error) {
	switch {
	case c.Socket != "":
		return listenSocket(c.Socket, c.ReplaceSocket)
	case c.Mode == ModeHTTPConnect:
		return listenTLS(following, "server-port", c.FrontAddress, "server", c.FrontTLS, "http/1.1")
	}
	return listenTLS(following, "server-port", c.FrontAddress, "server", c.FrontTLS, "h2")
}

func listenTLS(following context.Context, flag, address, side string, t TLS, protocol string) (net.Listener, error) {
	config, err := t.config(following, side, protocol)
	if err != nil {
		return nil, err
	}
	l, err := listen(flag, address)
	if err != nil {
		return nil, err
	}
	return tls.NewListener(gather.Listener{Listener: l}, config), nil
}

func listen(flag, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w (choose another port or address)", flag, err)
	}
	return l, nil
}

func (r *running) close() {
	r.stop()
	for _, l := range []net.Listener{r.agents, r.fronts, r.admin, r.health} {
		if l != nil {
			_ = l.Close() // most are closed by who serves them
		}
	}
}

// run serves and drains. The Lease goes first, so that agents count the server no longer.
func (r *running) run(ctx context.Context) (err error) {
	defer r.close()
	health, admin := newHealth(r.Metrics, r.notReady), newAdmin(r.Metrics, r.Profiling, r.ContentionProfiling)
	failed := make(chan error, 4) // one of each
	go func() { failed <- r.server.ServeAgents(r.agents) }()
	go func() { failed <- r.server.ServeFronts(r.fronts, r.Mode) }()
	go func() { failed <- admin.Serve(r.admin) }()
	go func() { failed <- health.Serve(r.health) }()
	published, withdraw := context.WithCancel(context.Background())
	defer withdraw()
	var lease sync.WaitGroup
	if r.Lease != nil {
		keeper := &leases{Lease: *r.Lease, metrics: r.Metrics, logger: r.Logger, clock: clock.RealClock{}}
		lease.Go(func() { keeper.run(published, r.ID) })
	}
	r.Logger.Info("serving", "id", r.ID, "agents", r.agents.Addr(), "mode", r.Mode, "fronts", r.fronts.Addr(), "admin", r.admin.Addr(), "health", r.health.Addr())
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
	return errors.Join(err, admin.Close(), health.Close())
}

// notReady says why nothing can be dialled through the server; "" if it can.
func (r *running) notReady() string {
	switch {
	case r.draining.Load():
		return "the server is shutting down"
	case !r.server.Ready():
		return "no connection to any proxy agent" // the reference's words
	}
	return ""
}
