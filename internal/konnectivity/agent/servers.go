package agent

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

const (
	lookupTimeout = 10 * time.Second // time to resolve the servers' name
	// maxAddresses limits the number of stored addresses. It also limits the number of addresses that the DNS name
	// resolves to, and the number of addresses in Leases.
	maxAddresses = 1000
)

// session is a *Session. Tests use other implementations.
type session interface {
	ServerID() string
	ServerCount() int
	ServerIsTrellis() bool
	GoingAway() <-chan struct{}
	Wait() error
	Drain()
	CloseWhenIdle() error
	Close()
}

// servers keeps one session to each server. Sessions to draining servers do not count, because those servers may
// have successors.
//
// Each address without a session is dialled. While servers are missing, addresses with a session are dialled too,
// because a load balancer may lead to the missing servers. If no address belongs to a load balancer, a server
// whose address has lost its session does not count as missing. After each attempt, an address is not dialled
// again before its backoff ends.
type servers struct {
	*Config
	connect   func(ctx context.Context, address string) (session, error)
	resolve   func(ctx context.Context, host string) ([]string, error)
	leases    func() (count int, addresses []string) // nil means that Leases are not counted
	metrics   *Metrics
	triggered chan struct{} // wakes run after a change
	tasks     sync.WaitGroup

	mu       sync.Mutex
	sessions map[string]session // by the server's ID
	// draining holds sessions until they end: those to draining servers, and second ones to the same server.
	draining      map[session]bool
	addresses     map[string]*serverAddress // by host:port
	reportedCount int                       // number of servers, as reported by the last server that was connected
	resolvedHosts []string                  // addresses of Host when it was last resolved
	// leaseCount is the last number of valid Leases that was not 0. All Leases expire while the control plane is
	// down.
	leaseCount     int
	leaseAddresses []string // addresses in the annotations of those Leases
	lookupBackoff  backoff
	resolving      bool
}

func newServers(c *Config, metrics *Metrics) *servers {
	return &servers{
		Config: c, metrics: metrics, resolve: c.lookupHost,
		connect: func(ctx context.Context, address string) (session, error) {
			return c.connectOnce(ctx, address, metrics)
		},
		triggered: make(chan struct{}, 1),
		sessions:  map[string]session{},
		draining:  map[session]bool{},
		addresses: map[string]*serverAddress{},
	}
}

// run connects to servers until ctx is done.
func (s *servers) run(ctx context.Context) {
	for ctx.Err() == nil {
		timer := time.NewTimer(s.reconcile(ctx))
		select {
		case <-ctx.Done():
		case <-s.triggered:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// trigger makes run reconcile after a change.
func (s *servers) trigger() {
	select {
	case s.triggered <- struct{}{}:
	default:
	}
}

// ready reports whether a session is open.
func (s *servers) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions) > 0
}

// reconcile starts the dials and the name resolution that are due. It returns the time until the next one is
// due.
func (s *servers) reconcile(ctx context.Context) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	next := now.Add(s.SyncIntervalCap)
	isDue := func(at time.Time) (due bool) {
		if at.After(now) && at.Before(next) {
			next = at
		}
		return !at.After(now)
	}
	if !s.resolving && isDue(s.lookupBackoff.until) {
		s.resolveHost(ctx)
	}
	missing := s.updateAddresses() - len(s.sessions)
	loadBalanced := s.hasLoadBalancer()
	for _, a := range s.addresses {
		if a.known && s.lacksSession(a) && isDue(a.until) {
			s.dial(ctx, a)
		}
		if a.dialing || a.known && a.lastServer != "" && s.lacksSession(a) && !loadBalanced {
			missing--
		}
	}
	for _, a := range s.addresses {
		switch spare := a.known && !a.fromLease && !a.dialing && !s.lacksSession(a); {
		case spare && missing > 0 && isDue(a.until):
			missing--
			s.dial(ctx, a)
		case spare && missing <= 0 && s.SyncForever && isDue(a.lastDial.Add(s.SyncIntervalCap)):
			s.dial(ctx, a)
		}
	}
	return next.Sub(now)
}

// lacksSession reports whether the address needs a dial: it has no session, and there is no session to the server
// that it last led to.
func (s *servers) lacksSession(a *serverAddress) bool {
	_, connected := s.sessions[a.lastServer]
	return a.sessions == 0 && !connected && !a.dialing
}

// hasLoadBalancer reports whether a known address belongs to a load balancer, which may lead to the servers of
// other addresses.
func (s *servers) hasLoadBalancer() bool {
	for _, a := range s.addresses {
		if a.known && a.loadBalanced {
			return true
		}
	}
	return false
}

// updateAddresses updates the addresses from the DNS name and the Leases. It returns the expected number of
// servers.
func (s *servers) updateAddresses() (count int) {
	for _, a := range s.addresses {
		a.known = false
		if len(s.addresses) > maxAddresses && a.sessions == 0 && !a.dialing {
			delete(s.addresses, a.address)
		}
	}
	add := func(address string, fromLease bool) {
		a := s.addresses[address]
		if a == nil {
			a = &serverAddress{address: address}
			s.addresses[address] = a
		}
		a.known, a.fromLease = true, fromLease
	}
	for _, host := range s.resolvedHosts {
		add(net.JoinHostPort(host, strconv.Itoa(s.Port)), false)
	}
	count = max(s.reportedCount, 1)
	if s.leases != nil {
		if n, addresses := s.leases(); n > 0 {
			s.leaseCount, s.leaseAddresses = n, addresses[:min(len(addresses), maxAddresses)]
		}
		for _, address := range s.leaseAddresses {
			add(address, true)
		}
		if !s.LargerCount || s.leaseCount > count {
			count = max(s.leaseCount, 1)
		}
	}
	s.metrics.knownServers.Set(float64(count))
	return count
}

// resolveHost resolves the servers' name in the background.
func (s *servers) resolveHost(ctx context.Context) {
	s.resolving = true
	s.tasks.Go(func() {
		lookupCtx, cancel := context.WithTimeout(ctx, lookupTimeout)
		hosts, err := s.resolve(lookupCtx, s.Host)
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		defer s.trigger()
		s.resolving = false
		s.lookupBackoff.extend(s.SyncInterval, s.SyncIntervalCap)
		if err != nil {
			consequence := "the known addresses stay in use"
			if len(s.resolvedHosts) == 0 {
				consequence = "no address is known (check --proxy-server-host)"
			}
			klog.ErrorS(err, "Cannot resolve the servers' name: "+consequence, "name", s.Host)
			return
		}
		s.resolvedHosts = hosts[:min(len(hosts), maxAddresses)]
	})
}

// dial connects to an address, and serves the session in the background until it ends.
func (s *servers) dial(ctx context.Context, a *serverAddress) {
	a.dialing = true
	s.tasks.Go(func() {
		session, err := s.connect(ctx, a.address)
		if !s.addSession(ctx, a, session, err) {
			return
		}
		start := time.Now()
		<-session.GoingAway()
		s.removeSession(a, session, time.Since(start))
		s.sessionEnded(ctx, a, session, session.Wait())
	})
}

// addSession records the result of a dial. It reports whether the session is the first one to its server. Further
// sessions to the same server are closed when they are idle.
func (s *servers) addSession(ctx context.Context, a *serverAddress, session session, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.trigger()
	a.dialing, a.lastDial = false, time.Now()
	if err == nil && session.ServerID() == "" {
		session.Close()
		err = errors.New("server has sent no ID")
	}
	if err != nil {
		a.extend(s.SyncInterval, s.SyncIntervalCap)
		if a.lastError != err.Error() && ctx.Err() == nil { // not logged yet
			klog.ErrorS(err, "Cannot connect to a server, will try again", "address", a.address)
		}
		a.lastError = err.Error()
		return false
	}
	a.lastServer, a.lastError, s.reportedCount = session.ServerID(), "", session.ServerCount()
	_, duplicate := s.sessions[a.lastServer]
	if !duplicate && a.sessions > 0 { // the address belongs to a load balancer; continue to look for its other servers
		a.backoff, a.loadBalanced = backoff{}, true
	}
	// If several agents dial at the same times, a round-robin load balancer may lead each of them to the same
	// server again and again. An immediate second dial breaks the pattern.
	if a.redialNow = duplicate && !a.redialNow; !a.redialNow {
		a.extend(s.SyncInterval, s.SyncIntervalCap)
	}
	switch {
	case ctx.Err() != nil:
		session.Close()
		return false
	case duplicate: // the server may already have requested a connection through the session
		s.draining[session] = true
		if session.ServerIsTrellis() {
			session.Drain()
		}
		s.tasks.Go(func() {
			_ = session.CloseWhenIdle()
			s.forget(session)
		})
		return false
	}
	klog.InfoS("Connected to a server", "address", a.address, "server", a.lastServer, "servers", s.reportedCount)
	a.sessions++
	s.sessions[a.lastServer] = session
	s.metrics.servers.Set(float64(len(s.sessions)))
	return true
}

// removeSession removes a session that has ended, or whose server accepts no new connections.
func (s *servers) removeSession(a *serverAddress, session session, lifetime time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.trigger()
	a.sessions--
	delete(s.sessions, session.ServerID())
	s.draining[session] = true
	s.metrics.servers.Set(float64(len(s.sessions)))
	if lifetime >= s.SyncIntervalCap { // a session that ends at once must not be redialled without backoff
		a.backoff, s.lookupBackoff = backoff{}, backoff{}
	}
}

// sessionEnded logs and forgets a session that has ended.
func (s *servers) sessionEnded(ctx context.Context, a *serverAddress, session session, err error) {
	klog.InfoS("The connection to a server has ended",
		"address", a.address, "server", session.ServerID(), "reason", err)
	if ctx.Err() == nil {
		s.metrics.serverFailures.Inc()
	}
	s.forget(session)
}

func (s *servers) forget(session session) {
	session.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.draining, session)
}
