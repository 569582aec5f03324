package aggregation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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
	maxDiscovery     = 8 << 20 // bytes of a resource list
)

// Condition is the condition Available of an APIService. The zero value says that nothing is known yet.
type Condition struct {
	Available       bool
	Reason, Message string
}

// watch judges the backend over and over, until it is closed: at once when something may have changed, each second while it is
// not available, and now and then anyway.
func (b *backend) watch() {
	for {
		http2, generation := b.look(), b.now.Load().generation
		for looked := b.of.config.Clock.Now(); ; {
			timer := b.of.config.Clock.NewTimer(lookEvery)
			poked := false
			select {
			case <-b.ctx.Done():
				timer.Stop()
				return
			case <-b.poked:
				poked = true
			case <-timer.C():
			}
			timer.Stop()
			if poked || !b.condition.Load().Available || b.generation() != generation || b.of.config.Clock.Since(looked) >= refreshAfter(http2) {
				break
			}
		}
	}
}

// look judges the backend once, and tells of what has changed. http2 says that its connections are of HTTP/2.
func (b *backend) look() (http2 bool) {
	c, http2 := b.judge()
	if b.ctx.Err() != nil {
		return http2
	}
	b.freshen(c.Available)
	if *b.condition.Load() != c {
		b.condition.Store(&c)
		b.of.config.Report(b.service.Name, c)
	}
	return http2
}

// judge says whether the backend is available, in the words of kube-apiserver
// (https://kubernetes.io/docs/tasks/extend-kubernetes/setup-extension-api-server).
func (b *backend) judge() (c Condition, http2 bool) {
	now := b.endpoints()
	if now.err != nil {
		return b.unresolved(now.err), false
	}
	type answer struct {
		list  []byte
		http2 bool
		err   error
	}
	answers := make(chan answer, len(now.all))
	for _, e := range now.all {
		go func() {
			list, http2, err := b.examine(e)
			answers <- answer{list, http2, err}
		}()
	}
	http2 = true
	var last error
	for range now.all {
		a := <-answers
		if a.err != nil {
			last = a.err
			continue
		}
		if !c.Available {
			last = b.describe(a.list)
		}
		c.Available, http2 = c.Available || last == nil, http2 && a.http2
	}
	if !c.Available {
		return Condition{Reason: "FailedDiscoveryCheck", Message: last.Error()}, false
	}
	return Condition{Available: true, Reason: "Passed", Message: "all checks passed"}, http2
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
func (b *backend) examine(e *endpoint) (list []byte, http2 bool, err error) {
	if e.well.Load() {
		if list, http2, err = b.ask(e, lookEvery); err == nil {
			return list, http2, nil
		}
	}
	ctx, cancel := context.WithTimeout(b.ctx, handshakeTimeout)
	defer cancel()
	if err = e.probe.Shake(ctx); err == nil {
		list, http2, err = b.ask(e, probeTimeout)
	}
	e.well.Store(err == nil)
	if err != nil {
		return nil, false, fmt.Errorf("failing or missing response from https://%s%s: %w", e.address, b.path(), err)
	}
	return list, http2, nil
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
	b.of.config.Headers.set(req.Header, &user.DefaultInfo{Name: "system:kube-aggregator", Groups: []string{user.SystemPrivilegedGroup}})
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
