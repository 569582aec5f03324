package api

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/trellis-k8s/trellis/internal/proxy"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// proxy has the server that serves a group version answer.
func (q *request) proxy(to *resource.APIService) {
	if q.server.config.Aggregator == nil {
		http.Error(&observed{q.w, q}, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	widen(0)
	m := q.server.metrics
	stream := q.verb == verbWatch || streams[q.subresource] || proxy.IsUpgrade(q.r)
	switch {
	case stream:
		defer q.unbounded()()
	case q.verb != verbGet && q.verb != verbList:
		m.mutating.Add(1)
		defer m.mutating.Add(-1)
	}
	if a := q.server.config.Aggregator; !a.ServeHTTP(&observed{q.w, q}, q.r, to, q.attributes.User, stream) {
		m.terminated(q, a.Discovery(to))
	}
}

// unbounded lets a request last as long as both sides of it want, and the server is there. The function that it returns ends that.
func (q *request) unbounded() (end func()) {
	q.seat.Release(time.Now) // which another server gives by itself
	q.server.metrics.watches.Add(1)
	q.readDeadline(time.Time{}) // what is sent may take as long
	q.deadline(time.Time{})     // and what is answered
	ctx, cancel := context.WithCancel(q.r.Context())
	stay := context.AfterFunc(q.server.serving, cancel) // as for the server's own watches
	q.r = q.r.WithContext(ctx)
	return func() {
		stay()
		cancel()
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
