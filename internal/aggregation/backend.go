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
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// backend is the API server of an APIService. It consists of the endpoints of a Service.
type backend struct {
	aggregator *Aggregator
	service    *catalog.APIService
	host       string // Host header of requests
	generation func() uint64
	ctx        context.Context
	cancel     context.CancelFunc
	triggered  chan struct{} // requests a check from watch

	condition atomic.Pointer[Condition]
	resources atomic.Pointer[apidiscoveryv2.APIVersionDiscovery]
	listed    atomic.Bool       // resources is from a response
	list      [sha256.Size]byte // hash of the list that resources was created from, used only by watch
	openAPIV3 *document         // index of the documents
	openAPIV2 *document

	reporting sync.Mutex // held while the condition is reported, and while close ends the reports

	mu      sync.Mutex // held while endpoints change
	current atomic.Pointer[endpoints]
	next    atomic.Uint32 // endpoint for the next request
}

// endpoints holds the endpoints that were resolved at one generation of the Service objects.
type endpoints struct {
	generation uint64
	all        []*endpoint
	err        error // the error of resolving them
}

func newBackend(a *Aggregator, s *catalog.APIService) *backend {
	b := &backend{
		aggregator: a, service: s, triggered: make(chan struct{}, 1), openAPIV3: &document{}, openAPIV2: &document{},
		generation: func() uint64 { return 0 },
	}
	b.host = egress.Service{Namespace: s.Namespace, Name: s.Service, Port: s.Port}.HostPort()
	b.ctx, b.cancel = context.WithCancel(a.ctx)
	if g := a.config.Dialer.Generation; g != nil {
		b.generation = g(s.Namespace, s.Service)
	}
	b.condition.Store(&Condition{})
	b.current.Store(&endpoints{err: errors.New("endpoints are not resolved yet")})
	return b
}

// inherit copies the state of the backend's predecessor. It does nothing if the predecessor had another Service or
// UID.
func (b *backend) inherit(last *backend) {
	if is, was := b.service, last.service; is.UID != was.UID ||
		is.Namespace != was.Namespace || is.Service != was.Service || is.Port != was.Port {
		return
	}
	b.condition.Store(last.condition.Load())
	b.resources.Store(last.resources.Load())
	b.listed.Store(last.listed.Load())
	b.openAPIV3, b.openAPIV2 = last.openAPIV3, last.openAPIV2
}

// close stops watch and closes idle connections. After it has returned, the backend reports no condition, so a report
// of its successor remains the newest one.
func (b *backend) close() {
	b.reporting.Lock()
	b.cancel()
	b.reporting.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.current.Load().all {
		e.close()
	}
	b.current.Store(&endpoints{err: b.ctx.Err()})
}

// trigger makes watch check the backend at once.
func (b *backend) trigger() {
	select {
	case b.triggered <- struct{}{}:
	default:
	}
}

// endpoints returns the current endpoints, and resolves them again if their generation has changed.
func (b *backend) endpoints() *endpoints {
	generation := b.generation()
	if current := b.current.Load(); current.generation == generation && current.err == nil {
		return current
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.current.Load()
	if b.ctx.Err() != nil || last.generation == generation && last.err == nil {
		return last
	}
	next := &endpoints{generation: generation}
	s := b.service
	addresses, err := b.aggregator.config.Endpoints(s.Namespace, s.Service, s.Port)
	next.err = err
	previous := map[string]*endpoint{}
	for _, e := range last.all {
		previous[e.address] = e
	}
	for _, address := range addresses {
		e := previous[address]
		if delete(previous, address); e == nil {
			if e, err = b.newEndpoint(address); err != nil {
				next.err = err
				continue
			}
		}
		next.all = append(next.all, e)
	}
	for _, e := range previous {
		e.close()
	}
	b.current.Store(next)
	return next
}

// endpoint is one of the addresses of a backend.
type endpoint struct {
	address string
	traffic *egress.Transport
	// probe uses a separate connection that is pinged often. No request is affected if a late ping ends this
	// connection.
	probe       *egress.Transport
	upgrades    *egress.Transport
	healthy     atomic.Bool // the last probe succeeded and the connection has not broken since
	probing     atomic.Bool // a probe is running
	disconnects atomic.Int64
}

func (b *backend) newEndpoint(address string) (e *endpoint, err error) {
	e = &endpoint{address: address}
	options := egress.Options{
		Name: "aggregation", Address: address,
		EndpointOf: &egress.Service{Namespace: b.service.Namespace, Name: b.service.Service, Port: b.service.Port},
		CABundle:   b.service.CABundle, Insecure: b.service.Insecure, Certificate: b.aggregator.config.Certificate,
	}
	probing := options
	options.ClientTimeouts = true
	upgrading := options
	probing.PingEvery, probing.MaxBytes, probing.Timeout = pingEvery, maxDiscovery, probeTimeout
	probing.Disconnected = func() {
		e.disconnects.Add(1)
		e.healthy.Store(false)
		b.trigger()
	}
	upgrading.Upgrades = true
	if e.traffic, err = b.aggregator.config.Dialer.NewTransport(options); err != nil {
		return nil, err
	}
	if e.probe, err = b.aggregator.config.Dialer.NewTransport(probing); err != nil {
		return nil, err
	}
	if e.upgrades, err = b.aggregator.config.Dialer.NewTransport(upgrading); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *endpoint) close() {
	e.traffic.Close()
	e.probe.Close()
	e.upgrades.Close()
}

// RoundTrip implements http.RoundTripper. It sends a request to one of the endpoints. If this endpoint does not
// respond, it sends the request to another endpoint, unless the request may have side effects.
func (b *backend) RoundTrip(req *http.Request) (*http.Response, error) {
	current := b.endpoints()
	if current.err != nil {
		return nil, current.err
	}
	first := b.pick(current.all, nil)
	resp, err := first.send(req)
	if err == nil || !isSafe(req) || req.Context().Err() != nil {
		return resp, err
	}
	if second := b.pick(current.all, first); second != nil {
		return second.send(req)
	}
	return nil, err
}

// pick returns the next endpoint in round-robin order. It prefers healthy endpoints and never returns exclude.
func (b *backend) pick(all []*endpoint, exclude *endpoint) (found *endpoint) {
	start := int(b.next.Add(1))
	for i := range all {
		e := all[(start+i)%len(all)]
		switch {
		case e == exclude:
		case e.healthy.Load() && e.traffic.Err() == nil:
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

// isSafe reports whether a request has no side effects, so that it can be sent twice.
func isSafe(req *http.Request) bool {
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return req.Body == nil || req.Body == http.NoBody
	}
	return false
}

// refreshAfter returns how long the result of a successful check is valid. Over HTTP/2 checks can be less frequent,
// because pings detect a broken connection between two checks.
func refreshAfter(http2 bool) time.Duration {
	if http2 {
		return 30 * time.Second
	}
	return time.Second
}
