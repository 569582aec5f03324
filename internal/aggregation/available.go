package aggregation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/egress"
)

const (
	pingEvery = 400 * time.Millisecond
	// checkInterval is the interval between checks for changed endpoints, and between checks of unhealthy endpoints.
	checkInterval = time.Second
	// handshakeTimeout limits the handshake with an endpoint. An endpoint that exceeds it counts as dead and not as
	// slow.
	handshakeTimeout = 800 * time.Millisecond
	probeTimeout     = 5 * time.Second
	maxDiscovery     = 4 << 20 // bytes of a resource list
)

// Condition is the condition Available of an APIService. The zero value means that nothing is known yet.
type Condition struct {
	Available       bool
	Reason, Message string
}

// watch checks the backend repeatedly until the backend is closed. It checks at once after a trigger, each second
// while the backend or one of its endpoints is unhealthy, and otherwise at longer intervals. It checks at most once a
// second.
func (b *backend) watch() {
	clock := b.aggregator.config.Clock
	var lastFull time.Time    // start of the last check that included healthy endpoints
	var refresh time.Duration // interval of such checks
	for first, all := true, true; ; first = false {
		started := clock.Now()
		if all {
			lastFull = started
		}
		if http2 := b.check(all, first); all {
			refresh = refreshAfter(http2)
		}
		if !b.wait(started, func() bool { return clock.Since(lastFull) >= refresh }) {
			return
		}
		all = clock.Since(lastFull) >= refresh
	}
}

// wait blocks until the next check is due. It returns false if the backend has been closed.
func (b *backend) wait(started time.Time, due func() bool) bool {
	generation := b.current.Load().generation
	for triggered := false; ; {
		interval := checkInterval
		if triggered {
			interval -= b.aggregator.config.Clock.Since(started)
		}
		timer := b.aggregator.config.Clock.NewTimer(interval)
		select {
		case <-b.ctx.Done():
			timer.Stop()
			return false
		case <-b.triggered:
			triggered = true
		case <-timer.C():
		}
		timer.Stop()
		elapsed := b.aggregator.config.Clock.Since(started) >= checkInterval
		if elapsed && (triggered || b.generation() != generation || !b.condition.Load().Available ||
			!b.current.Load().healthy() || due()) {
			return true
		}
	}
}

// check checks the backend once and reports changes. If all is set, the check includes healthy endpoints. http2 then
// reports whether the backend uses HTTP/2.
func (b *backend) check(all, first bool) (http2 bool) {
	c, http2 := b.evaluate(all)
	b.reporting.Lock()
	defer b.reporting.Unlock()
	if b.ctx.Err() != nil {
		return http2
	}
	b.setFreshness(c.Available)
	if last := *b.condition.Load(); first || last != c {
		if last.Available && !c.Available {
			b.aggregator.failures.WithLabelValues(b.service.Name, c.Reason).Inc()
		}
		b.condition.Store(&c)
		b.aggregator.config.Report(b.service, c)
	}
	return http2
}

// probeResult is the result of probing an endpoint. list is the endpoint's resource list.
type probeResult struct {
	list  []byte
	http2 bool
	err   error
}

// evaluate returns the condition of the backend, with kube-apiserver's reasons and messages
// (https://kubernetes.io/docs/tasks/extend-kubernetes/setup-extension-api-server). It returns as soon as one probe has
// found a healthy endpoint. The other probes continue in the background.
func (b *backend) evaluate(all bool) (c Condition, http2 bool) {
	current := b.endpoints()
	if current.err != nil {
		return b.unresolved(current.err), false
	}
	passed, http2 := Condition{Available: true, Reason: "Passed", Message: "all checks passed"}, true
	results, started, healthy := make(chan probeResult, len(current.all)), 0, false
	for _, e := range current.all {
		if !all && e.healthy.Load() {
			healthy = true
			continue
		}
		if !e.probing.CompareAndSwap(false, true) {
			continue // the previous probe is still running
		}
		started++
		b.aggregator.loops.Go(func() {
			defer e.probing.Store(false)
			results <- b.probe(e)
		})
	}
	if healthy {
		return passed, http2
	}
	last := errors.New("no endpoint has responded yet")
	for range started {
		r := <-results
		if r.err == nil {
			b.storeResources(r.list)
			return passed, r.http2
		}
		last = r.err
	}
	return Condition{Reason: "FailedDiscoveryCheck", Message: last.Error()}, false
}

// healthy reports whether all endpoints are healthy.
func (e *endpoints) healthy() bool {
	return !slices.ContainsFunc(e.all, func(one *endpoint) bool { return !one.healthy.Load() })
}

// unresolved returns the condition of a backend whose endpoints could not be resolved because of err.
func (b *backend) unresolved(err error) Condition {
	s := b.service
	var unresolved *egress.UnresolvedError
	errors.As(err, &unresolved)
	switch {
	case unresolved == nil:
		return Condition{Reason: "FailedDiscoveryCheck", Message: err.Error()}
	case unresolved.Cause == egress.NoService:
		return Condition{Reason: "ServiceNotFound",
			Message: fmt.Sprintf("service/%s in %q is not present", s.Service, s.Namespace)}
	case unresolved.Cause == egress.NoPort:
		return Condition{Reason: "ServicePortError",
			Message: fmt.Sprintf("service/%s in %q is not listening on port %d", s.Service, s.Namespace, s.Port)}
	case unresolved.Cause == egress.NoEndpoints:
		return Condition{Reason: "EndpointsNotFound",
			Message: fmt.Sprintf("cannot find endpointslices for service/%s in %q", s.Service, s.Namespace)}
	}
	return Condition{Reason: "MissingEndpoints",
		Message: fmt.Sprintf("endpointslices for service/%s in %q have no addresses with port name %q",
			s.Service, s.Namespace, unresolved.PortName)}
}

// probe requests the resource list of the group version from an endpoint. An endpoint that was not healthy before must
// first complete a handshake within handshakeTimeout.
func (b *backend) probe(e *endpoint) (r probeResult) {
	disconnects := e.disconnects.Load()
	if e.healthy.Load() {
		if r.list, r.http2, r.err = b.fetchResources(e, checkInterval); r.err == nil {
			return r
		}
	}
	ctx, cancel := context.WithTimeout(b.ctx, handshakeTimeout)
	defer cancel()
	if r.err = e.probe.Handshake(ctx); r.err == nil {
		r.list, r.http2, r.err = b.fetchResources(e, probeTimeout)
	}
	e.healthy.Store(r.err == nil && e.disconnects.Load() == disconnects)
	if r.err != nil {
		r.err = fmt.Errorf("failing or missing response from https://%s%s: %w", e.address, b.path(), r.err)
	}
	return r
}

func (b *backend) fetchResources(e *endpoint, within time.Duration) (list []byte, http2 bool, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, within)
	defer cancel()
	url := "https://" + e.address + b.path()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, false, err
	}
	req.Host = b.host
	req.Header.Set("Accept", "application/json")
	b.aggregator.config.Headers.Set(req.Header, &user.DefaultInfo{Name: "system:kube-aggregator",
		Groups: []string{user.SystemPrivilegedGroup}})
	client := http.Client{Transport: e.probe, CheckRedirect: func(*http.Request,
		[]*http.Request) error {
		return http.ErrUseLastResponse
	}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		return nil, false, fmt.Errorf("bad status from %s: %d", url, resp.StatusCode)
	}
	list, err = io.ReadAll(resp.Body) // limited by the Transport
	return list, resp.ProtoMajor == 2, err
}

// path returns the URL path of the group version.
func (b *backend) path() string {
	if gv := b.service.GroupVersion; gv.Group != "" {
		return "/apis/" + gv.Group + "/" + gv.Version
	}
	return "/api/" + b.service.GroupVersion.Version
}
