package server

import (
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"

	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// errNoAgent is that of a dial when no agent is connected, or none that is for the destination.
//
//lint:ignore ST1005 clients of the reference know the text
var errNoAgent = errors.New(wire.NoAgent)

// agents are those connected.
type agents struct {
	strategies []Strategy
	metrics    *metrics

	mu     sync.RWMutex
	all    pool
	routes pool            // with default-route=true
	hosts  map[string]pool // by destination
}

// newAgents returns the registry of agents, of which there are none yet.
func newAgents(strategies []Strategy, m *metrics) *agents {
	r := &agents{strategies: strategies, metrics: m, hosts: map[string]pool{}}
	r.updateMetrics()
	return r
}

// add puts in a connection, once, that can be dialled through from now on.
func (r *agents) add(a *agent) { r.change(a, pool.with) }

// remove takes out a connection that has ended. What is not there is ignored.
func (r *agents) remove(a *agent) { r.change(a, pool.without) }

func (r *agents) change(a *agent, change func(pool, *agent) pool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = change(r.all, a)
	if a.identifiers.defaultRoute {
		r.routes = change(r.routes, a)
	}
	for host := range a.identifiers.hosts {
		if p := change(r.hosts[host], a); len(p) > 0 {
			r.hosts[host] = p
		} else {
			delete(r.hosts, host)
		}
	}
	r.updateMetrics()
}

func (r *agents) updateMetrics() {
	r.metrics.ready.Set(float64(len(r.all)))
	r.metrics.agentStreams.Set(float64(len(slices.Concat(r.all...))))
	for _, s := range r.strategies {
		r.metrics.backends.WithLabelValues(string(s)).Set(float64(r.candidates(s)))
	}
}

// candidates is how many agents a strategy has or, with DestHost, hosts.
func (r *agents) candidates(s Strategy) int {
	switch s {
	case DestHost:
		return len(r.hosts)
	case DefaultRoute:
		return len(r.routes)
	}
	return len(r.all)
}

// ready says that a strategy has an agent for some destination at least.
func (r *agents) ready() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.ContainsFunc(r.strategies, func(s Strategy) bool { return r.candidates(s) > 0 })
}

// established is how many tunnelled connections all of them have opened.
func (r *agents) established() (n int) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, of := range r.all {
		for _, a := range of {
			n += a.established()
		}
	}
	return n
}

// pick chooses the connection for a destination, host:port: of the first strategy that has one, that of the agent with the fewest
// tunnelled connections. One whose dials fail, which may be its own fault, would have the fewest for ever: it is chosen where its
// strategy has no other. One that is draining is chosen where no strategy has another. The error is errNoAgent.
func (r *agents) pick(address string) (*agent, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, may := range []func(*agent) bool{
		func(a *agent) bool { return !a.Draining() },
		func(*agent) bool { return true },
	} {
		for _, s := range r.strategies {
			of := r.pool(s, address)
			a := of.pick(func(a *agent) bool { return may(a) && !a.isFailing() })
			if a == nil {
				a = of.pick(may)
			}
			if a != nil {
				return a, nil
			}
		}
	}
	return nil, errNoAgent
}

func (r *agents) pool(s Strategy, address string) pool {
	switch s {
	case DestHost:
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			host = address // has no port
		}
		return r.hosts[canonical(host)]
	case DefaultRoute:
		return r.routes
	}
	return r.all
}

// pool is agents, each with its connections, the one to keep to first. Reference agents close what they have more than one of: it is
// the one that came first. Ours keep one, so that another says that those before are dead: it is the one that came last.
type pool [][]*agent

func (p pool) with(a *agent) pool {
	i := p.find(a.id)
	if i < 0 {
		return append(p, []*agent{a})
	}
	at := len(p[i])
	if a.byConnect {
		at = 0
	}
	p[i] = slices.Insert(p[i], at, a)
	return p
}

func (p pool) without(a *agent) pool {
	i := p.find(a.id)
	if i < 0 {
		return p
	}
	if p[i] = slices.DeleteFunc(p[i], func(other *agent) bool { return other == a }); len(p[i]) == 0 {
		return slices.Delete(p, i, i+1)
	}
	return p
}

func (p pool) find(id string) int {
	return slices.IndexFunc(p, func(of []*agent) bool { return of[0].id == id })
}

// pick returns the one with the fewest tunnelled connections, any of several, among some; nil: there is none.
func (p pool) pick(among func(*agent) bool) (best *agent) {
	fewest, ties := 0, 0
	for _, of := range p {
		i := slices.IndexFunc(of, func(a *agent) bool { return among(a) && a.isSettled() })
		if i < 0 {
			i = slices.IndexFunc(of, among)
		}
		if i < 0 {
			continue
		}
		open := of[i].connCount()
		if ties == 0 || open < fewest {
			fewest, ties = open, 0
		}
		if open > fewest {
			continue
		}
		if ties++; rand.IntN(ties) == 0 {
			best = of[i]
		}
	}
	return best
}
