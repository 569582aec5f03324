package server

import (
	"errors"
	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
	"sync"
	"time"
)

type Strategy int
type Identifiers struct{}
type Metrics struct{}

func (*Metrics) Refused(error)         {}
func (*Metrics) Stalled()              {}
func (*Metrics) DialFailed(string)     {}
func (*Metrics) Dialling(int)          {}
func (*Metrics) Dialled(time.Duration) {}
func (*Metrics) agent(wire.Type, bool) {}
func (*Metrics) front(wire.Type, bool) {}

var ErrNoAgent = errors.New("No agent available")

type Agent interface{ ID() string }
type Agents struct {
	mu  sync.Mutex
	all []Agent
}

func NewAgents([]Strategy) *Agents { return &Agents{} }
func (a *Agents) Add(x Agent)      { a.mu.Lock(); a.all = append(a.all, x); a.mu.Unlock() }
func (a *Agents) Remove(x Agent) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, y := range a.all {
		if x == y {
			a.all = append(a.all[:i], a.all[i+1:]...)
			return
		}
	}
}
func (a *Agents) Len() int { a.mu.Lock(); defer a.mu.Unlock(); return len(a.all) }
func (a *Agents) Pick(string) (Agent, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all) == 0 {
		return nil, ErrNoAgent
	}
	return a.all[0], nil
}
func ParseIdentifiers(string) (Identifiers, error) { return Identifiers{}, nil }
