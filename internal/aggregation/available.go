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
	// lookEvery is how long it may take to see that endpoints have changed, and between two looks at what does not answer.
	lookEvery = time.Second
	// handshakeTimeout is how long an endpoint may take to shake hands, which tells one that is slow from one that is dead or mute.
	handshakeTimeout = 800 * time.Millisecond
	probeTimeout     = 5 * time.Second
	maxDiscovery     = 4 << 20 // bytes of a resource list
)

// Condition is the condition Available of an APIService. The zero value says that nothing is known yet.
type Condition struct {
	Available       bool
	Reason, Message string
}

// watch judges the backend over and over, until it is closed: at once when something may have changed, each second while it, or
// one of its endpoints, is not well, and now and then anyway; but never more often than that, whatever it does.
func (b *backend) watch() {
	clock := b.of.config.Clock
	var asked time.Time       // all endpoints, also those that are well
	var refresh time.Duration // after that
	for first, all := true, true; ; first = false {
		looked := clock.Now()
		if all {
			asked = looked
		}
		if http2 := b.look(all, first); all {
			refresh = refreshAfter(http2)
		}
		if !b.rest(looked, func() bool { return clock.Since(asked) >= refresh }) {
			return
		}
		all = clock.Since(asked) >= refresh
	}
}

// rest returns when it is time to look again, or false when the backend has been closed.
func (b *backend) rest(looked time.Time, due func() bool) bool {
	generation := b.now.Load().generation
	for poked := false; ; {
		wait := lookEvery
		if poked {
			wait -= b.of.config.Clock.Since(looked)
		}
		timer := b.of.config.Clock.NewTimer(wait)
		select {
		case <-b.ctx.Done():
			timer.Stop()
			return false
		case <-b.poked:
			poked = true
		case <-timer.C():
		}
		timer.Stop()
		rested := b.of.config.Clock.Since(looked) >= lookEvery
		if rested && (poked || b.generation() != generation || !b.condition.Load().Available || !b.now.Load().well() || due()) {
			return true
		}
	}
}

// look judges the backend once, and tells of what has changed. http2 says that its connections are of HTTP/2, where all were asked.
func (b *backend) look(all, first bool) (http2 bool) {
	c, http2 := b.judge(all)
	if b.ctx.Err() != nil {
		return http2
	}
	b.freshen(c.Available)
	if last := *b.condition.Load(); first || last != c {
		if last.Available && !c.Available {
			b.of.failures.WithLabelValues(b.service.Name, c.Reason).Inc()
		}
		b.condition.Store(&c)
		b.of.config.Report(b.service, c)
	}
	return http2
}

// answer is what an endpoint says of its resources.
type answer struct {
	list  []byte
	http2 bool
	err   error
}

// judge says whether the backend is available, in the words of kube-apiserver
// (https://kubernetes.io/docs/tasks/extend-kubernetes/setup-extension-api-server). It does so as soon as one endpoint is known
// to be well; what is slower goes on.
func (b *backend) judge(all bool) (c Condition, http2 bool) {
	now := b.endpoints()
	if now.err != nil {
		return b.unresolved(now.err), false
	}
	passed, http2 := Condition{Available: true, Reason: "Passed", Message: "all checks passed"}, true
	answers, asked, well := make(chan answer, len(now.all)), 0, false
	for _, e := range now.all {
		if !all && e.well.Load() {
			well = true
			continue
		}
		if !e.asked.CompareAndSwap(false, true) {
			continue // it takes its time
		}
		asked++
		b.of.loops.Go(func() {
			defer e.asked.Store(false)
			answers <- b.examine(e)
		})
	}
	if well {
		return passed, http2
	}
	last := errors.New("no endpoint has answered yet")
	for range asked {
		a := <-answers
		if a.err == nil {
			b.describe(a.list)
			return passed, a.http2
		}
		last = a.err
	}
	return Condition{Reason: "FailedDiscoveryCheck", Message: last.Error()}, false
}

// well says that there is no endpoint that is not.
func (e *endpoints) well() bool {
	return !slices.ContainsFunc(e.all, func(one *endpoint) bool { return !one.well.Load() })
}

// unresolved says why there is no endpoint.
func (b *backend) unresolved(err error) Condition {
	s := b.service
	var why *egress.UnresolvedError
	errors.As(err, &why)
	switch {
	case why == nil:
		return Condition{Reason: "FailedDiscoveryCheck", Message: err.Error()}
	case why.Cause == egress.NoService:
		return Condition{Reason: "ServiceNotFound", Message: fmt.Sprintf("service/%s in %q is not present", s.Service, s.Namespace)}
	case why.Cause == egress.NoPort:
		return Condition{Reason: "ServicePortError", Message: fmt.Sprintf("service/%s in %q is not listening on port %d", s.Service, s.Namespace, s.Port)}
	case why.Cause == egress.NoEndpoints:
		return Condition{Reason: "EndpointsNotFound", Message: fmt.Sprintf("cannot find endpointslices for service/%s in %q", s.Service, s.Namespace)}
	}
	return Condition{Reason: "MissingEndpoints", Message: fmt.Sprintf("endpointslices for service/%s in %q have no addresses with port name %q", s.Service, s.Namespace, why.PortName)}
}

// examine asks an endpoint for the resources of the group version. One that has not been well all along has to shake hands
// quickly first.
func (b *backend) examine(e *endpoint) (a answer) {
	breaks := e.breaks.Load()
	if e.well.Load() {
		if a.list, a.http2, a.err = b.ask(e, lookEvery); a.err == nil {
			return a
		}
	}
	ctx, cancel := context.WithTimeout(b.ctx, handshakeTimeout)
	defer cancel()
	if a.err = e.probe.Handshake(ctx); a.err == nil {
		a.list, a.http2, a.err = b.ask(e, probeTimeout)
	}
	e.well.Store(a.err == nil && e.breaks.Load() == breaks)
	if a.err != nil {
		a.err = fmt.Errorf("failing or missing response from https://%s%s: %w", e.address, b.path(), a.err)
	}
	return a
}

func (b *backend) ask(e *endpoint, within time.Duration) (list []byte, http2 bool, err error) {
	ctx, cancel := context.WithTimeout(b.ctx, within)
	defer cancel()
	url := "https://" + e.address + b.path()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, false, err
	}
	req.Host = b.host
	req.Header.Set("Accept", "application/json")
	b.of.config.Headers.Set(req.Header, &user.DefaultInfo{Name: "system:kube-aggregator", Groups: []string{user.SystemPrivilegedGroup}})
	client := http.Client{Transport: e.probe, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		return nil, false, fmt.Errorf("bad status from %s: %d", url, resp.StatusCode)
	}
	list, err = io.ReadAll(resp.Body) // which is bounded
	return list, resp.ProtoMajor == 2, err
}

// path is that of the group version.
func (b *backend) path() string {
	if gv := b.service.GroupVersion; gv.Group != "" {
		return "/apis/" + gv.Group + "/" + gv.Version
	}
	return "/api/" + b.service.GroupVersion.Version
}
