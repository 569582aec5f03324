package server

import (
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
)

// ErrNoAgent is that of a dial when no agent is connected, or none that is for the destination. Clients of the reference know the
// text.
//
//lint:ignore ST1005 it is the reference's
var ErrNoAgent = errors.New("No agent available")

// Agent is a connection of an agent.
type Agent interface {
	comparable
	ID() string // an agent may have several connections for a moment
	Identifiers() Identifiers
	Draining() bool // the agent goes away, and wants nothing new
	Failing() bool  // what it was last asked to dial it could not, a moment ago
	Open() int      // tunnelled connections
}

// Agents are those connected.
type Agents[A Agent] struct {
	strategies []Strategy
	metrics    *Metrics

	mu     sync.RWMutex
	all    pool[A]
	routes pool[A]            // with default-route=true
	hosts  map[string]pool[A] // by destination
}

// NewAgents returns the registry of agents, of which there are none yet.
func NewAgents[A Agent](strategies []Strategy, m *Metrics) *Agents[A] {
	a := &Agents[A]{strategies: strategies, metrics: m, hosts: map[string]pool[A]{}}
	a.count()
	return a
}

// Add puts in a connection, once, that can be dialled through from now on.
func (a *Agents[A]) Add(agent A) {
	a.change(agent, pool[A].with)
}

// Remove takes out a connection that has ended. What is not there is ignored.
func (a *Agents[A]) Remove(agent A) {
	a.change(agent, pool[A].without)
}

func (a *Agents[A]) change(agent A, change func(pool[A], A) pool[A]) {
	a.mu.Lock()
	defer a.mu.Unlock()
	of := agent.Identifiers()
	a.all = change(a.all, agent)
	if of.DefaultRoute {
		a.routes = change(a.routes, agent)
	}
	for host := range of.hosts() {
		if p := change(a.hosts[host], agent); len(p) > 0 {
			a.hosts[host] = p
		} else {
			delete(a.hosts, host)
		}
	}
	a.count()
}

func (a *Agents[A]) count() {
	a.metrics.ready.Set(float64(len(a.all)))
	n := map[Strategy]int{Default: len(a.all), DestHost: len(a.hosts), DefaultRoute: len(a.routes)}
	for _, s := range a.strategies {
		a.metrics.backends.WithLabelValues(string(s)).Set(float64(n[s]))
	}
}

// Len is how many agents are connected.
func (a *Agents[A]) Len() int {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return len(a.all)
}

// Open is how many tunnelled connections all of them have.
func (a *Agents[A]) Open() (n int) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, of := range a.all {
		for _, agent := range of {
			n += agent.Open()
		}
	}
	return n
}

// Pick chooses the connection for a destination, host:port: of the first strategy that has one, that of the agent with the fewest
// tunnelled connections. One whose dials fail, which may be its own fault, would have the fewest for ever: it is chosen where the
// strategies have no other, and one that is draining after that. The error is ErrNoAgent.
func (a *Agents[A]) Pick(address string) (A, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, among := range []func(A) bool{
		func(agent A) bool { return !agent.Draining() && !agent.Failing() },
		func(agent A) bool { return !agent.Draining() },
		func(A) bool { return true },
	} {
		for _, s := range a.strategies {
			if agent, found := a.pool(s, address).pick(among); found {
				return agent, nil
			}
		}
	}
	var none A
	return none, ErrNoAgent
}

func (a *Agents[A]) pool(s Strategy, address string) pool[A] {
	switch s {
	case DestHost:
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			host = address // has no port
		}
		return a.hosts[canonical(host)]
	case DefaultRoute:
		return a.routes
	}
	return a.all
}

// pool is agents, each with its connections in the order in which they came. Reference agents close what they have more than one of,
// so the first is the one to keep to.
type pool[A Agent] [][]A

func (p pool[A]) with(agent A) pool[A] {
	i := p.find(agent.ID())
	if i < 0 {
		return append(p, []A{agent})
	}
	p[i] = append(p[i], agent)
	return p
}

func (p pool[A]) without(agent A) pool[A] {
	i := p.find(agent.ID())
	if i < 0 {
		return p
	}
	if p[i] = slices.DeleteFunc(p[i], func(other A) bool { return other == agent }); len(p[i]) == 0 {
		return slices.Delete(p, i, i+1)
	}
	return p
}

func (p pool[A]) find(id string) int {
	return slices.IndexFunc(p, func(of []A) bool { return of[0].ID() == id })
}

// pick returns the one with the fewest tunnelled connections, any of several, among some.
func (p pool[A]) pick(among func(A) bool) (best A, found bool) {
	fewest, ties := 0, 0
	for _, of := range p {
		i := slices.IndexFunc(of, among)
		if i < 0 {
			continue
		}
		open := of[i].Open()
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
	return best, ties > 0
}
