package aggregation

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"

	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/proxy"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// backend is who serves a group version: the endpoints of a Service.
type backend struct {
	of         *Aggregator
	service    *resource.APIService
	host       string // what requests call it
	generation func() uint64
	ctx        context.Context
	cancel     context.CancelFunc
	poked      chan struct{} // receives when something may have changed

	condition atomic.Pointer[Condition]
	resources atomic.Pointer[apidiscoveryv2.APIVersionDiscovery]
	listed    atomic.Bool       // resources are those of an answer
	list      [sha256.Size]byte // the hash of what resources were made of; of the watch
	index     *document         // of OpenAPI v3
	whole     *document         // of v2

	mu   sync.Mutex // for who changes endpoints
	now  atomic.Pointer[endpoints]
	turn atomic.Uint32
}

// endpoints are those of one generation.
type endpoints struct {
	generation uint64
	all        []*endpoint
	err        error // why there are none
}

func newBackend(a *Aggregator, s *resource.APIService) *backend {
	b := &backend{of: a, service: s, poked: make(chan struct{}, 1), index: &document{}, whole: &document{}, generation: func() uint64 { return 0 }}
	b.host = egress.Service{Namespace: s.Namespace, Name: s.Service, Port: s.Port}.HostPort()
	b.ctx, b.cancel = context.WithCancel(a.ctx)
	if g := a.config.Dialer.Generation; g != nil {
		b.generation = g(s.Namespace, s.Service)
	}
	b.condition.Store(&Condition{})
	b.now.Store(&endpoints{err: errors.New("not looked for yet")})
	return b
}

// takeOver has b know what is known of its predecessor. Whether that is available may say nothing of b, if it is elsewhere.
func (b *backend) takeOver(last *backend) {
	if is, was := b.service, last.service; is.UID != was.UID || is.Namespace != was.Namespace || is.Service != was.Service || is.Port != was.Port {
		return
	}
	b.condition.Store(last.condition.Load())
	b.resources.Store(last.resources.Load())
	b.listed.Store(last.listed.Load())
	b.index, b.whole = last.index, last.whole
}

// close ends the watch, and lets go of connections that are idle.
func (b *backend) close() {
	b.cancel()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.now.Load().all {
		e.close()
	}
	b.now.Store(&endpoints{err: b.ctx.Err()})
}

// poke has the watch look at once.
func (b *backend) poke() {
	select {
	case b.poked <- struct{}{}:
	default:
	}
}

// endpoints returns those that there are now.
func (b *backend) endpoints() *endpoints {
	generation := b.generation()
	if now := b.now.Load(); now.generation == generation && now.err == nil {
		return now
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.now.Load()
	if b.ctx.Err() != nil || last.generation == generation && last.err == nil {
		return last
	}
	next := &endpoints{generation: generation}
	s := b.service
	addresses, err := b.of.config.Endpoints(s.Namespace, s.Service, s.Port)
	next.err = err
	kept := map[string]*endpoint{}
	for _, e := range last.all {
		kept[e.address] = e
	}
	for _, address := range addresses {
		e := kept[address]
		if delete(kept, address); e == nil {
			if e, err = b.newEndpoint(address); err != nil {
				next.err = err
				continue
			}
		}
		next.all = append(next.all, e)
	}
	for _, e := range kept {
		e.close()
	}
	b.now.Store(next)
	return next
}

// endpoint is one of the addresses of a backend.
type endpoint struct {
	address string
	traffic *egress.Transport
	// probe has a connection of its own, which is pinged often: to lose it in error harms nobody.
	probe    *egress.Transport
	upgrades *egress.Transport
	well     atomic.Bool // it answered when it was last asked, and has not broken off since
	asked    atomic.Bool // it is being asked
	breaks   atomic.Int64
}

func (b *backend) newEndpoint(address string) (e *endpoint, err error) {
	e = &endpoint{address: address}
	options := egress.Options{
		Name: "aggregation", Address: address, EndpointOf: &egress.Service{Namespace: b.service.Namespace, Name: b.service.Service, Port: b.service.Port},
		CABundle: b.service.CABundle, Insecure: b.service.Insecure, Certificate: b.of.config.Certificate,
	}
	probing := options
	options.ClientTimeouts = true
	upgrading := options
	probing.PingEvery, probing.MaxBytes, probing.Timeout = pingEvery, maxDiscovery, probeTimeout
	probing.Disconnected = func() {
		e.breaks.Add(1)
		e.well.Store(false)
		b.poke()
	}
	upgrading.Upgrades = true
	if e.traffic, err = b.of.config.Dialer.NewTransport(options); err != nil {
		return nil, err
	}
	if e.probe, err = b.of.config.Dialer.NewTransport(probing); err != nil {
		return nil, err
	}
	if e.upgrades, err = b.of.config.Dialer.NewTransport(upgrading); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *endpoint) close() {
	e.traffic.Close()
	e.probe.Close()
	e.upgrades.Close()
}

// RoundTrip implements http.RoundTripper: it sends a request to one of the endpoints, and one that changes nothing to another if
// no answer comes from the first.
func (b *backend) RoundTrip(req *http.Request) (*http.Response, error) {
	now := b.endpoints()
	if now.err != nil {
		return nil, now.err
	}
	first := b.pick(now.all, nil)
	resp, err := first.send(req)
	if err == nil || !isSafe(req) || req.Context().Err() != nil {
		return resp, err
	}
	if second := b.pick(now.all, first); second != nil {
		return second.send(req)
	}
	return nil, err
}

// pick takes the next endpoint in turn, one that answers if there is any, but never not.
func (b *backend) pick(all []*endpoint, not *endpoint) (found *endpoint) {
	turn := int(b.turn.Add(1))
	for i := range all {
		e := all[(turn+i)%len(all)]
		switch {
		case e == not:
		case e.well.Load() && e.traffic.Err() == nil:
			return e
		case found == nil:
			found = e
		}
	}
	return found
}

func (e *endpoint) send(req *http.Request) (*http.Response, error) {
	to := *req.URL
	to.Host = e.address
	out := *req
	out.URL = &to
	if proxy.IsUpgrade(req) {
		return e.upgrades.RoundTrip(&out)
	}
	return e.traffic.RoundTrip(&out)
}

// isSafe says that it does no harm to send a request twice.
func isSafe(req *http.Request) bool {
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return req.Body == nil || req.Body == http.NoBody
	}
	return false
}

// refreshAfter is how long what is known of a backend that answers is good for, unless its connection breaks: only that of HTTP/2 is
// known to be alive in between.
func refreshAfter(http2 bool) time.Duration {
	if http2 {
		return 30 * time.Second
	}
	return time.Second
}
