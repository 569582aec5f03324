package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/trellis-k8s/trellis/internal/proxy"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// proxy forwards a request to the API server of a group version. A request for an upgrade has a deadline until it is upgraded: the header
// alone exempts it from nothing.
func (q *request) proxy(to *resource.APIService) {
	if q.server.config.Aggregator == nil {
		http.Error(&observed{q.w, q}, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	widen(0)
	stream := q.lasts()
	if stream {
		defer q.unbounded()()
	} else {
		defer q.bounded()()
	}
	if a := q.server.config.Aggregator; !a.ServeHTTP(&observed{q.w, q}, q.r, to, q.attributes.User, stream) {
		q.server.metrics.terminated(q, a.Discovery(to))
	}
}

// bounded sets the deadline of a request that is not long-running. A request that is upgraded before its deadline becomes long-running. The
// caller calls end when the request is answered.
func (q *request) bounded() (end func()) {
	short := func() {}
	if m := q.server.metrics; q.verb != verbGet && q.verb != verbList {
		m.mutating.Add(1)
		short = func() { m.mutating.Add(-1) }
	}
	limited, stop := context.WithDeadline(q.r.Context(), q.began.Add(q.server.config.RequestTimeout))
	if !proxy.IsUpgrade(q.r) {
		q.r = q.r.WithContext(limited)
		return func() { stop(); short() }
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(limited))
	lift := context.AfterFunc(limited, func() { cancel(context.Cause(limited)) })
	q.r = q.r.WithContext(ctx)
	q.upgraded = func() {
		if lift() { // else the deadline was first
			short()
			short = q.longRunning(func() { cancel(nil) })
		}
	}
	return func() { stop(); cancel(nil); short() }
}

// unbounded lets a request last until one of its sides ends it, or the server shuts down. The caller calls end when the request is answered.
func (q *request) unbounded() (end func()) {
	ctx, cancel := context.WithCancel(q.r.Context())
	q.r = q.r.WithContext(ctx)
	done := q.longRunning(cancel)
	return func() { done(); cancel() }
}

// longRunning releases what a short request holds, counts the request as a long-running one, and calls cancel when the server shuts down.
// The caller calls done at the end of the request.
func (q *request) longRunning(cancel func()) (done func()) {
	q.seat.Release(time.Now)
	q.server.metrics.watches.Add(1)
	q.readDeadline(time.Time{})
	q.deadline(time.Time{})
	stay := context.AfterFunc(q.server.serving, cancel)
	return func() {
		stay()
		q.server.metrics.watches.Add(-1)
	}
}

// widen makes room on the stack, as deepen does for what a write calls, for the less that a proxy calls.
//
//go:noinline
func widen(i int) byte {
	var room [5 << 10]byte
	return room[i]
}

// streams are the subresources whose requests last, as kube-apiserver knows them.
var streams = map[string]bool{"attach": true, "exec": true, "log": true, "portforward": true, "proxy": true}

// theirs returns who serves the group version that a path is about which addresses no resource; nil: this server does.
func (q *request) theirs() *resource.APIService {
	parts := strings.Split(strings.TrimSuffix(q.r.URL.Path, "/"), "/")
	group := ""
	switch {
	case len(parts) == 4 && parts[1] == "apis":
		group = parts[2]
	case len(parts) != 3 || parts[1] != "api":
		return nil
	}
	_, theirs := q.server.live.Load().Route(group, parts[len(parts)-1], "")
	return theirs
}
