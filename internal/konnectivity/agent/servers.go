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
	maxPlaces     = 1000             // addresses that are kept in mind; of those that the name has, as many are used
)

// session is a *Session. Tests have others.
type session interface {
	ServerID() string
	ServerCount() int
	Ours() bool
	Leaving() <-chan struct{}
	Run() error
	Drain()
	Finish() error
	Close()
}

// servers keeps one session to each server. Those of servers that are leaving do not count: there may be successors.
//
// A place that leads to no server is dialled. One that leads to some is dialled again only where servers are missing, and no other
// place is known to lead to these: it may be a load balancer's. After each try a place is left alone for longer, until something is new.
type servers struct {
	*Config
	connect func(ctx context.Context, address string) (session, error)
	resolve func(ctx context.Context, host string) ([]string, error)
	leases  func() (count int, addresses []string) // nil: they are not counted
	metrics *Metrics
	woken   chan struct{} // something has changed
	tasks   sync.WaitGroup

	mu       sync.Mutex
	sessions map[string]session // by the server's ID
	leaving  map[session]bool   // those that have been, and second ones to a server, until they end
	places   map[string]*place  // by address
	answer   int                // how many servers there are, as the last said that was connected to
	resolved []string           // the addresses of Host, as it was last resolved
	leased   int                // how many Leases held when last any did: the control plane may be away, and nobody renew them
	leasedAt []string           // the addresses that they had
	lookup   pause
	looking  bool
}

func newServers(c *Config, m *Metrics) *servers {
	return &servers{
		Config: c, metrics: m, resolve: c.lookup,
		connect: func(ctx context.Context, address string) (session, error) { return c.connect(ctx, address, m) },
		woken:   make(chan struct{}, 1), sessions: map[string]session{}, leaving: map[session]bool{}, places: map[string]*place{},
	}
}

// run connects to servers until ctx is done.
func (s *servers) run(ctx context.Context) {
	for ctx.Err() == nil {
		timer := time.NewTimer(s.step(ctx))
		select {
		case <-ctx.Done():
		case <-s.woken:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// wake has run look at what has changed.
func (s *servers) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// ready says whether there is a session.
func (s *servers) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.sessions) > 0
}

// step begins to dial what is due, and returns how long it takes until something else is.
func (s *servers) step(ctx context.Context) time.Duration {
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
	if !s.looking && soon(s.lookup.until) {
		s.look(ctx)
	}
	missing := s.locate() - len(s.sessions)
	balanced := s.balanced()
	for _, p := range s.places {
		if p.known && s.leadsNowhere(p) && soon(p.until) {
			s.dial(ctx, p)
		}
		if p.dialing || p.known && p.server != "" && s.leadsNowhere(p) && !balanced {
			missing--
		}
	}
	for _, p := range s.places {
		switch may := p.known && !p.alone && !p.dialing && !s.leadsNowhere(p); {
		case may && missing > 0 && soon(p.until):
			missing--
			s.dial(ctx, p)
		case may && missing <= 0 && s.SyncForever && soon(p.tried.Add(s.SyncIntervalCap)):
			s.dial(ctx, p)
		}
	}
	return next.Sub(now)
}

// leadsNowhere is true of a place where there is no session, neither by way of it nor to the server that it led to last.
func (s *servers) leadsNowhere(p *place) bool {
	_, connected := s.sessions[p.server]
	return p.open == 0 && !connected && !p.dialing
}

// balanced says that there is a load balancer: what another place led to may be met by way of it.
func (s *servers) balanced() bool {
	for _, p := range s.places {
		if p.known && p.several {
			return true
		}
	}
	return false
}

// locate brings the places up to what the name and the Leases say now, and returns how many servers there are.
func (s *servers) locate() (count int) {
	for _, p := range s.places {
		p.known = false
		if len(s.places) > maxPlaces && p.open == 0 && !p.dialing {
			delete(s.places, p.address)
		}
	}
	know := func(address string, alone bool) {
		p := s.places[address]
		if p == nil {
			p = &place{address: address}
			s.places[address] = p
		}
		p.known, p.alone = true, alone
	}
	for _, host := range s.resolved {
		know(net.JoinHostPort(host, strconv.Itoa(s.Port)), false)
	}
	count = max(s.answer, 1)
	if s.leases != nil {
		if n, addresses := s.leases(); n > 0 {
			s.leased, s.leasedAt = n, addresses[:min(len(addresses), maxPlaces)]
		}
		for _, a := range s.leasedAt {
			know(a, true)
		}
		if !s.LargerCount || s.leased > count {
			count = max(s.leased, 1)
		}
	}
	s.metrics.counted.Set(float64(count))
	return count
}

// look resolves the name of the servers anew.
func (s *servers) look(ctx context.Context) {
	s.looking = true
	s.tasks.Go(func() {
		within, cancel := context.WithTimeout(ctx, lookupTimeout)
		hosts, err := s.resolve(within, s.Host)
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		defer s.wake()
		s.looking = false
		s.lookup.lengthen(s.SyncInterval, s.SyncIntervalCap)
		if err != nil {
			meanwhile := "its addresses stay what they were"
			if len(s.resolved) == 0 {
				meanwhile = "it has no addresses yet; is it what --proxy-server-host should be?"
			}
			klog.ErrorS(err, "The servers' name cannot be resolved: "+meanwhile, "name", s.Host)
			return
		}
		s.resolved = hosts[:min(len(hosts), maxPlaces)]
	})
}

// dial connects by way of a place, and serves what that leads to until it ends.
func (s *servers) dial(ctx context.Context, p *place) {
	p.dialing = true
	s.tasks.Go(func() {
		x, err := s.connect(ctx, p.address)
		if !s.keep(ctx, p, x, err) {
			return
		}
		began := time.Now()
		<-x.Leaving()
		s.lose(p, x, time.Since(began))
		s.ended(ctx, p, x, x.Run())
	})
}

// keep says whether a session is one to keep.
func (s *servers) keep(ctx context.Context, p *place, x session, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wake()
	p.dialing, p.tried = false, time.Now()
	if err == nil && x.ServerID() == "" {
		x.Close()
		err = errors.New("the server has not said its ID")
	}
	if err != nil {
		p.lengthen(s.SyncInterval, s.SyncIntervalCap)
		if p.trouble != err.Error() && ctx.Err() == nil { // and has not been told
			klog.ErrorS(err, "No connection to a server, will try again", "address", p.address)
		}
		p.trouble = err.Error()
		return false
	}
	p.server, p.trouble, s.answer = x.ServerID(), "", x.ServerCount()
	_, twice := s.sessions[p.server]
	if !twice && p.open > 0 { // a load balancer, and the search goes on
		p.pause, p.several = pause{}, true
	}
	// Of agents that dial in step, a load balancer that takes turns leads each to the same server for ever, but for the second of two dials.
	if p.again = twice && !p.again; !p.again {
		p.lengthen(s.SyncInterval, s.SyncIntervalCap)
	}
	switch {
	case ctx.Err() != nil:
		x.Close()
		return false
	case twice: // the server may have asked for a connection by way of it
		s.leaving[x] = true
		if x.Ours() {
			x.Drain()
		}
		s.tasks.Go(func() {
			_ = x.Finish()
			s.forget(x)
		})
		return false
	}
	klog.InfoS("Connected to a server", "address", p.address, "server", p.server, "servers", s.answer)
	p.open++
	s.sessions[p.server] = x
	s.metrics.servers.Set(float64(len(s.sessions)))
	return true
}

// lose takes a session away whose server takes nothing new, or that has ended.
func (s *servers) lose(p *place, x session, lived time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.wake()
	p.open--
	delete(s.sessions, x.ServerID())
	s.leaving[x] = true
	s.metrics.servers.Set(float64(len(s.sessions)))
	if lived >= s.SyncIntervalCap { // one that ends at once would be dialled again at once, for ever
		p.pause, s.lookup = pause{}, pause{}
	}
}

// ended forgets a session to a server that is connected no more.
func (s *servers) ended(ctx context.Context, p *place, x session, err error) {
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
	delete(s.leaving, x)
}
