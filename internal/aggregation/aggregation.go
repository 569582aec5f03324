// Package aggregation serves group versions through other API servers. It resolves the endpoints of an APIService,
// checks their availability, and proxies requests to them. It must not import packages that authorize requests or
// implement kinds of objects.
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
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// Config configures an Aggregator.
type Config struct {
	// Catalog returns the current catalog with its APIServices.
	Catalog func() *catalog.Catalog
	// Dialer connects to endpoints.
	Dialer *egress.Dialer
	// Endpoints returns the endpoints of a Service.
	Endpoints func(namespace, name string, port int32) ([]string, error)
	// Certificate returns this server's client certificate. It is the reason why the other API servers trust Headers.
	Certificate func() (*tls.Certificate, error)
	// Headers are the headers that contain the user's identity.
	Headers proxy.Headers
	// Report is called with the Condition of an APIService when it is first known and when it changes. It must not
	// block.
	Report func(s *catalog.APIService, c Condition)
	// Clock measures intervals. nil means the real clock.
	Clock clock.WithTicker
}

// Aggregator connects to the API servers of all APIServices.
type Aggregator struct {
	config Config
	ctx    context.Context // ends the background goroutines
	end    context.CancelFunc
	loops  sync.WaitGroup

	failures *prometheus.CounterVec // transitions to unavailable, by name of the APIService and reason

	mu       sync.RWMutex
	backends map[string]*backend // by name of the APIService
}

// New returns an Aggregator without APIServices. The caller must close it.
func New(c Config) *Aggregator {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	a := &Aggregator{config: c, backends: map[string]*backend{}, failures: newFailures()}
	a.ctx, a.end = context.WithCancel(context.Background())
	return a
}

// Close stops all background goroutines and waits for them. Requests in flight continue.
func (a *Aggregator) Close() {
	a.mu.Lock()
	a.end()
	for _, b := range a.backends {
		b.close()
	}
	a.mu.Unlock()
	a.loops.Wait()
}

// Follow applies changes of the APIServices. It starts to watch new ones and stops watching deleted ones.
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
		if last != nil && last.service.SameSpec(s) {
			continue
		}
		b := newBackend(a, s)
		if last != nil {
			b.inherit(last)
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

// backend returns the current backend of s. It returns a closed backend if s has been deleted.
func (a *Aggregator) backend(s *catalog.APIService) *backend {
	if b := a.lookup(s); b != nil {
		return b
	}
	a.Follow()
	if b := a.lookup(s); b != nil {
		return b
	}
	gone := newBackend(a, s)
	gone.close()
	return gone
}

// lookup returns the backend of s, or nil.
func (a *Aggregator) lookup(s *catalog.APIService) *backend {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if b := a.backends[s.Name]; b != nil && b.service.UID == s.UID {
		return b
	}
	return nil
}

// Discovery returns the known resources of s, or nil if they are not known yet. The resources are marked as stale if
// they may be out of date. The pointer stays the same until the resources change.
func (a *Aggregator) Discovery(s *catalog.APIService) *apidiscoveryv2.APIVersionDiscovery {
	return a.backend(s).resources.Load()
}

// LastResources returns the resources that the API server of an APIService listed last. It returns nil if the API
// server has not listed them since the APIService and the Aggregator were created.
func (a *Aggregator) LastResources(uid types.UID, name string) *apidiscoveryv2.APIVersionDiscovery {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if b := a.backends[name]; b != nil && b.service.UID == uid && b.listed.Load() {
		return b.resources.Load()
	}
	return nil
}
