// Package aggregation has other API servers serve group versions of this one: it finds the endpoints of an APIService, judges
// whether they answer, and proxies requests to them. It knows neither who may ask nor what is asked for.
package aggregation

import (
	"context"
	"crypto/tls"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/proxy"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Config is what an Aggregator works with.
type Config struct {
	// Catalog returns the APIServices of now.
	Catalog func() *resource.Catalog
	// Dialer connects to endpoints, and Endpoints finds those of a Service.
	Dialer    *egress.Dialer
	Endpoints func(namespace, name string, port int32) ([]string, error)
	// Certificate is who this server is to the others, which believe what Headers say of a user because of it.
	Certificate func() (*tls.Certificate, error)
	Headers     proxy.Headers
	// Report is told of the Condition of an APIService when it is first known, and when it changes. It must not block.
	Report func(s *resource.APIService, c Condition)
	Clock  clock.WithTicker // nil: the machine's
}

// Aggregator is the way to the API servers of all APIServices.
type Aggregator struct {
	config Config
	ctx    context.Context // ends what it does by itself
	end    context.CancelFunc
	loops  sync.WaitGroup

	failures *prometheus.CounterVec // of what was available, by name of the APIService and reason

	mu       sync.RWMutex
	backends map[string]*backend // by name of the APIService
}

// New returns an Aggregator that knows no APIService yet. The caller closes it.
func New(c Config) *Aggregator {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	a := &Aggregator{config: c, backends: map[string]*backend{}, failures: newFailures()}
	a.ctx, a.end = context.WithCancel(context.Background())
	return a
}

// Close ends what goes on by itself, and waits for it. Requests under way go on.
func (a *Aggregator) Close() {
	a.mu.Lock()
	a.end()
	for _, b := range a.backends {
		b.close()
	}
	a.mu.Unlock()
	a.loops.Wait()
}

// Follow takes note that the APIServices have changed: it begins to watch those that are new, and forgets those that are gone.
func (a *Aggregator) Follow() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ctx.Err() != nil {
		return
	}
	known := map[string]bool{}
	for _, s := range a.config.Catalog().APIServices() {
		known[s.Name] = true
		last := a.backends[s.Name]
		if last != nil && last.service.Same(s) {
			continue
		}
		b := newBackend(a, s)
		if last != nil {
			b.takeOver(last)
			last.close()
		}
		a.backends[s.Name] = b
		a.loops.Go(b.watch)
	}
	for name, b := range a.backends {
		if !known[name] {
			b.close()
			delete(a.backends, name)
			a.failures.DeletePartialMatch(prometheus.Labels{"name": name})
		}
	}
}

// backend returns who serves s, or what has become of s since: nobody, if it is gone.
func (a *Aggregator) backend(s *resource.APIService) *backend {
	if b := a.known(s); b != nil {
		return b
	}
	a.Follow()
	if b := a.known(s); b != nil {
		return b
	}
	gone := newBackend(a, s)
	gone.close()
	return gone
}

func (a *Aggregator) known(s *resource.APIService) *backend {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if b := a.backends[s.Name]; b != nil && b.service.UID == s.UID {
		return b
	}
	return nil
}

// Discovery returns what is known of the resources of s, which may be out of date, and says so; nil before anything is known. It is
// the same pointer until it changes.
func (a *Aggregator) Discovery(s *resource.APIService) *apidiscoveryv2.APIVersionDiscovery {
	return a.backend(s).resources.Load()
}

// LastResources returns the resources of the APIService with a UID and a name as its API server last listed them, nil if it has not
// listed them since the APIService exists and a is open.
func (a *Aggregator) LastResources(uid types.UID, name string) *apidiscoveryv2.APIVersionDiscovery {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if b := a.backends[name]; b != nil && b.service.UID == uid && b.listed.Load() {
		return b.resources.Load()
	}
	return nil
}
