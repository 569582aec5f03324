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
	lookupTimeout = 10 * time.Second // to resolve the name of the servers
	maxAddresses  = 1000             // addresses that are kept in mind; of those that the name has, as many are used
)

// session is a *Session. Tests have others.
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

// servers keeps one session to each server. Those of servers that are leaving do not count: there may be successors.
//
// A place that leads to no server is dialled. One that leads to some is dialled again only where servers are missing, and no other
// place is known to lead to these: it may be a load balancer's. After each try a place is left alone for longer, until something is new.
type servers struct {
	*Config
	connect   func(ctx context.Context, address string) (session, error)
	resolve   func(ctx context.Context, host string) ([]string, error)
	leases    func() (count int, addresses []string) // nil: they are not counted
	metrics   *Metrics
	triggered chan struct{} // something has changed
	tasks     sync.WaitGroup

	mu             sync.Mutex
	sessions       map[string]session        // by the server's ID
	draining       map[session]bool          // those that have been, and second ones to a server, until they end
	addresses      map[string]*serverAddress // by address
	reportedCount  int                       // how many servers there are, as the last said that was connected to
	resolvedHosts  []string                  // the addresses of Host, as it was last resolved
	leaseCount     int                       // how many Leases held when last any did: the control plane may be away, and nobody renew them
	leaseAddresses []string                  // the addresses that they had
	lookupBackoff  backoff
	resolving      bool
}

func newServers(c *Config, m *Metrics) *servers {
	return &servers{
		Config: c, metrics: m, resolve: c.lookupHost,
		connect:   func(ctx context.Context, address string) (session, error) { return c.connectOnce(ctx, address, m) },
		triggered: make(chan struct{}, 1), sessions: map[string]session{}, draining: map[session]bool{}, addresses: map[string]*serverAddress{},
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

// trigger has run look at what has changed.
func (s *servers) trigger() {
	select {
	case s.triggered <- struct{}{}:
	default:
	}
}

// ready says whether there is a session.
func (s *servers) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions) > 0
}

// reconcile begins to dial what is due, and returns how long it takes until something else is.
func (s *servers) reconcile(ctx context.Context) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	next := now.Add(s.SyncIntervalCap)
	soon := func(at time.Time) (due bool) {
		if at.After(now) && at.Before(next) {
			next = at
		}
		return !at.After(now)
	}
	if !s.resolving && soon(s.lookupBackoff.until) {
		s.resolveHost(ctx)
	}
	missing := s.updateAddresses() - len(s.sessions)
	balanced := s.hasLoadBalancer()
	for _, p := range s.addresses {
		if p.known && s.lacksSession(p) && soon(p.until) {
			s.dial(ctx, p)
		}
		if p.dialing || p.known && p.lastServer != "" && s.lacksSession(p) && !balanced {
			missing--
		}
	}
	for _, p := range s.addresses {
		switch may := p.known && !p.fromLease && !p.dialing && !s.lacksSession(p); {
		case may && missing > 0 && soon(p.until):
			missing--
			s.dial(ctx, p)
		case may && missing <= 0 && s.SyncForever && soon(p.lastDial.Add(s.SyncIntervalCap)):
			s.dial(ctx, p)
		}
	}
	return next.Sub(now)
}

// lacksSession is true of a place where there is no session, neither by way of it nor to the server that it led to last.
func (s *servers) lacksSession(p *serverAddress) bool {
	_, connected := s.sessions[p.lastServer]
	return p.sessions == 0 && !connected && !p.dialing
}

// hasLoadBalancer says that there is a load balancer: what another place led to may be met by way of it.
func (s *servers) hasLoadBalancer() bool {
	for _, p := range s.addresses {
		if p.known && p.loadBalanced {
			return true
		}
	}
	return false
}

// updateAddresses brings the places up to what the name and the Leases say now, and returns how many servers there are.
func (s *servers) updateAddresses() (count int) {
	for _, p := range s.addresses {
		p.known = false
		if len(s.addresses) > maxAddresses && p.sessions == 0 && !p.dialing {
			delete(s.addresses, p.address)
		}
	}
	know := func(address string, alone bool) {
		p := s.addresses[address]
		if p == nil {
			p = &serverAddress{address: address}
			s.addresses[address] = p
		}
		p.known, p.fromLease = true, alone
	}
	for _, host := range s.resolvedHosts {
		know(net.JoinHostPort(host, strconv.Itoa(s.Port)), false)
	}
	count = max(s.reportedCount, 1)
	if s.leases != nil {
		if n, addresses := s.leases(); n > 0 {
			s.leaseCount, s.leaseAddresses = n, addresses[:min(len(addresses), maxAddresses)]
		}
		for _, a := range s.leaseAddresses {
			know(a, true)
		}
		if !s.LargerCount || s.leaseCount > count {
			count = max(s.leaseCount, 1)
		}
	}
	s.metrics.knownServers.Set(float64(count))
	return count
}

// resolveHost resolves the name of the servers anew.
func (s *servers) resolveHost(ctx context.Context) {
	s.resolving = true
	s.tasks.Go(func() {
		within, cancel := context.WithTimeout(ctx, lookupTimeout)
		hosts, err := s.resolve(within, s.Host)
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		defer s.trigger()
		s.resolving = false
		s.lookupBackoff.extend(s.SyncInterval, s.SyncIntervalCap)
		if err != nil {
			meanwhile := "its addresses stay what they were"
			if len(s.resolvedHosts) == 0 {
				meanwhile = "it has no addresses yet; is it what --proxy-server-host should be?"
			}
			klog.ErrorS(err, "The servers' name cannot be resolved: "+meanwhile, "name", s.Host)
			return
		}
		s.resolvedHosts = hosts[:min(len(hosts), maxAddresses)]
	})
}

// dial connects by way of a place, and serves what that leads to until it ends.
func (s *servers) dial(ctx context.Context, p *serverAddress) {
	p.dialing = true
	s.tasks.Go(func() {
		x, err := s.connect(ctx, p.address)
		if !s.addSession(ctx, p, x, err) {
			return
		}
		began := time.Now()
		<-x.GoingAway()
		s.removeSession(p, x, time.Since(began))
		s.sessionEnded(ctx, p, x, x.Wait())
	})
}

// addSession says whether a session is one to keep.
func (s *servers) addSession(ctx context.Context, p *serverAddress, x session, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.trigger()
	p.dialing, p.lastDial = false, time.Now()
	if err == nil && x.ServerID() == "" {
		x.Close()
		err = errors.New("the server has not said its ID")
	}
	if err != nil {
		p.extend(s.SyncInterval, s.SyncIntervalCap)
		if p.lastError != err.Error() && ctx.Err() == nil { // and has not been told
			klog.ErrorS(err, "No connection to a server, will try again", "address", p.address)
		}
		p.lastError = err.Error()
		return false
	}
	p.lastServer, p.lastError, s.reportedCount = x.ServerID(), "", x.ServerCount()
	_, twice := s.sessions[p.lastServer]
	if !twice && p.sessions > 0 { // a load balancer, and the search goes on
		p.backoff, p.loadBalanced = backoff{}, true
	}
	// Of agents that dial in step, a load balancer that takes turns leads each to the same server for ever, but for the second of two dials.
	if p.redialNow = twice && !p.redialNow; !p.redialNow {
		p.extend(s.SyncInterval, s.SyncIntervalCap)
	}
	switch {
	case ctx.Err() != nil:
		x.Close()
		return false
	case twice: // the server may have asked for a connection by way of it
		s.draining[x] = true
		if x.ServerIsTrellis() {
			x.Drain()
		}
		s.tasks.Go(func() {
			_ = x.CloseWhenIdle()
			s.forget(x)
		})
		return false
	}
	klog.InfoS("Connected to a server", "address", p.address, "server", p.lastServer, "servers", s.reportedCount)
	p.sessions++
	s.sessions[p.lastServer] = x
	s.metrics.servers.Set(float64(len(s.sessions)))
	return true
}

// removeSession takes a session away whose server takes nothing new, or that has ended.
func (s *servers) removeSession(p *serverAddress, x session, lived time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.trigger()
	p.sessions--
	delete(s.sessions, x.ServerID())
	s.draining[x] = true
	s.metrics.servers.Set(float64(len(s.sessions)))
	if lived >= s.SyncIntervalCap { // one that ends at once would be dialled again at once, for ever
		p.backoff, s.lookupBackoff = backoff{}, backoff{}
	}
}

// sessionEnded forgets a session to a server that is connected no more.
func (s *servers) sessionEnded(ctx context.Context, p *serverAddress, x session, err error) {
	klog.InfoS("The connection to a server has ended", "address", p.address, "server", x.ServerID(), "reason", err)
	if ctx.Err() == nil {
		s.metrics.serverFailures.Inc()
	}
	s.forget(x)
}

func (s *servers) forget(x session) {
	x.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.draining, x)
}
