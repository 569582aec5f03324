package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/trellis-k8s/trellis/internal/proxy"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// proxy forwards a request to the API server of an APIService. An upgrade request has a deadline until the
// connection is upgraded. The Upgrade header alone does not remove the deadline.
func (q *request) proxy(service *resource.APIService) {
	q.slot.Release() // the other API server does the work
	if q.server.config.Aggregator == nil {
		http.Error(&responseRecorder{q.w, q}, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	growStackForProxy(0)
	stream := q.isLongRunning()
	if stream {
		defer q.startLongRunning()()
	} else {
		defer q.startShort()()
	}
	w, a := &responseRecorder{q.w, q}, q.server.config.Aggregator
	if !a.ServeHTTP(w, q.r, service, q.attributes.User, stream) {
		q.server.metrics.countTermination(q, a.Discovery(service))
	}
}

// startShort sets the deadline of a request that is not long-running. The request becomes long-running if its
// connection is upgraded before the deadline. The caller calls end after the response.
func (q *request) startShort() (end func()) {
	uncount := func() {}
	if m := q.server.metrics; q.verb != verbGet && q.verb != verbList {
		m.mutating.Add(1)
		uncount = func() { m.mutating.Add(-1) }
	}
	limited, stop := context.WithDeadline(q.r.Context(), q.began.Add(q.server.config.RequestTimeout))
	if !proxy.IsUpgrade(q.r) {
		q.r = q.r.WithContext(limited)
		return func() { stop(); uncount() }
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(limited))
	stopDeadline := context.AfterFunc(limited, func() { cancel(context.Cause(limited)) })
	q.r = q.r.WithContext(ctx)
	q.onUpgrade = func() {
		if stopDeadline() { // otherwise the deadline expired first
			uncount()
			uncount = q.becomeLongRunning(func() { cancel(nil) })
		}
	}
	return func() { stop(); cancel(nil); uncount() }
}

// startLongRunning removes the deadline of a request. The request lasts until the client or the target ends it,
// or the server shuts down. The caller calls end after the response.
func (q *request) startLongRunning() (end func()) {
	ctx, cancel := context.WithCancel(q.r.Context())
	q.r = q.r.WithContext(ctx)
	done := q.becomeLongRunning(cancel)
	return func() { done(); cancel() }
}

// becomeLongRunning releases the seat of a request and removes its deadlines. It counts the request as
// long-running. It calls cancel when the server shuts down. The caller calls done after the response.
func (q *request) becomeLongRunning(cancel func()) (done func()) {
	q.seat.Release(time.Now)
	q.server.metrics.watches.Add(1)
	q.setReadDeadline(time.Time{})
	q.setWriteDeadline(time.Time{})
	stopCancel := context.AfterFunc(q.server.serving, cancel)
	return func() {
		stopCancel()
		q.server.metrics.watches.Add(-1)
	}
}

// growStackForProxy grows the stack for the functions that a proxied request calls. It allocates less than
// growStack.
//
//go:noinline
func growStackForProxy(i int) byte {
	var space [5 << 10]byte
	return space[i]
}

// longRunningSubresources are the subresources whose requests kube-apiserver regards as long-running.
var longRunningSubresources = map[string]bool{
	"attach": true, "exec": true, "log": true, "portforward": true, "proxy": true,
}

// aggregatedService returns the APIService of the group version in a discovery path. It returns nil if this
// server serves the path.
func (q *request) aggregatedService() *resource.APIService {
	parts := strings.Split(strings.TrimSuffix(q.r.URL.Path, "/"), "/")
	group := ""
	switch {
	case len(parts) == 4 && parts[1] == "apis":
		group = parts[2]
	case len(parts) != 3 || parts[1] != "api":
		return nil
	}
	_, aggregated := q.server.live.Load().Route(group, parts[len(parts)-1], "")
	return aggregated
}
