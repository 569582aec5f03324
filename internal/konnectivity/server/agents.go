package server

import (
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"

	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// errNoAgent is the error of a dial when no agent is connected, or none serves the destination.
//
//lint:ignore ST1005 reference clients know the text
var errNoAgent = errors.New(wire.NoAgent)

// agents is the registry of connected agents.
type agents struct {
	strategies []Strategy
	metrics    *metrics

	mu     sync.RWMutex
	all    pool
	routes pool            // agents with default-route=true
	hosts  map[string]pool // agents by destination host
}

// newAgents returns an empty registry.
func newAgents(strategies []Strategy, metrics *metrics) *agents {
	r := &agents{strategies: strategies, metrics: metrics, hosts: map[string]pool{}}
	r.updateMetrics()
	return r
}

// add adds an agent's connection, which pick can then return. It must be called once for each connection.
func (r *agents) add(a *agent) { r.change(a, pool.with) }

// remove removes a connection that has ended. It ignores a connection that is not in the registry.
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

// candidates returns the number of agents that a strategy can choose. For DestHost, it returns the number of hosts
// that agents serve.
func (r *agents) candidates(s Strategy) int {
	switch s {
	case DestHost:
		return len(r.hosts)
	case DefaultRoute:
		return len(r.routes)
	}
	return len(r.all)
}

// ready reports whether a strategy has an agent for at least one destination.
func (r *agents) ready() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.ContainsFunc(r.strategies, func(s Strategy) bool { return r.candidates(s) > 0 })
}

// established returns the number of connections that all agents have opened.
func (r *agents) established() (n int) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, conns := range r.all {
		for _, a := range conns {
			n += a.established()
		}
	}
	return n
}

// pick returns the agent's connection for a destination (host:port). It tries the strategies in order and returns
// the agent with the fewest tunnelled connections. It returns a draining agent only if all agents that the
// strategies allow are draining. It returns an agent whose last dial failed only if the strategy allows no other
// agent: the agent may be the cause of the failure, and would otherwise always have the fewest connections. The
// error is errNoAgent.
func (r *agents) pick(address string) (*agent, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, eligible := range []func(*agent) bool{
		func(a *agent) bool { return !a.Draining() },
		func(*agent) bool { return true },
	} {
		for _, s := range r.strategies {
			pool := r.pool(s, address)
			a := pool.pick(func(a *agent) bool { return eligible(a) && !a.isFailing() })
			if a == nil {
				a = pool.pick(eligible)
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
			host = address // the address has no port
		}
		return r.hosts[canonical(host)]
	case DefaultRoute:
		return r.routes
	}
	return r.all
}

// pool lists agents. Each element holds the connections of one agent, in order of preference. A reference agent
// closes all but its first connection to a server, so its connections are ordered from oldest to newest. A Trellis
// agent keeps one connection to a server, so a new connection means that earlier ones are dead. Its connections
// are ordered from newest to oldest.
type pool [][]*agent

// with returns the pool with a connection added.
func (p pool) with(a *agent) pool {
	i := p.find(a.id)
	if i < 0 {
		return append(p, []*agent{a})
	}
	position := len(p[i])
	if a.byConnect {
		position = 0
	}
	p[i] = slices.Insert(p[i], position, a)
	return p
}

// without returns the pool with a connection removed.
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

// find returns the index of the agent with an ID, or -1.
func (p pool) find(id string) int {
	return slices.IndexFunc(p, func(conns []*agent) bool { return conns[0].id == id })
}

// pick selects the agent with the fewest tunnelled connections and returns one of its eligible connections,
// preferably a settled one. Ties are resolved at random. It returns nil if no connection is eligible.
func (p pool) pick(eligible func(*agent) bool) (best *agent) {
	fewest, ties := 0, 0
	for _, conns := range p {
		i := slices.IndexFunc(conns, func(a *agent) bool { return eligible(a) && a.isSettled() })
		if i < 0 {
			i = slices.IndexFunc(conns, eligible)
		}
		if i < 0 {
			continue
		}
		count := conns[i].connCount()
		if ties == 0 || count < fewest {
			fewest, ties = count, 0
		}
		if count > fewest {
			continue
		}
		if ties++; rand.IntN(ties) == 0 {
			best = conns[i]
		}
	}
	return best
}
