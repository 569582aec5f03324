package handlers

import (
	"context"
	"net/http"
	"time"

	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/proxy"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// proxy forwards a request to the API server of an APIService. An upgrade request has a deadline until the
// connection is upgraded. The Upgrade header alone does not remove the deadline.
func (q call) proxy(service *catalog.APIService) {
	q.Slot.Release() // the other API server does the work
	if q.Aggregator == nil {
		http.Error(q.Recorder(nil), "service unavailable", http.StatusServiceUnavailable)
		return
	}
	growStackForProxy(0)
	var end, onUpgrade func()
	stream := q.IsLongRunning()
	if stream {
		end = q.startLongRunning()
	} else {
		end, onUpgrade = q.startShort()
	}
	defer end()
	w, a := q.Recorder(onUpgrade), q.Aggregator
	if !a.ServeHTTP(w, q.R, service, q.Attributes.User, stream) {
		q.Metrics.CountTermination(q.Request, a.Discovery(service))
	}
}

// startShort sets the deadline of a request that is not long-running. The request becomes long-running if its
// connection is upgraded before the deadline. The caller calls end after the response, and onUpgrade, unless it is nil,
// when the connection is upgraded.
func (q call) startShort() (end, onUpgrade func()) {
	uncount := func() {}
	if m := q.Metrics; q.Verb != request.VerbGet && q.Verb != request.VerbList {
		m.Mutating.Add(1)
		uncount = func() { m.Mutating.Add(-1) }
	}
	limited, stop := context.WithDeadline(q.R.Context(), q.Began.Add(q.Timeout))
	if !proxy.IsUpgrade(q.R) {
		q.R = q.R.WithContext(limited)
		return func() { stop(); uncount() }, nil
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(limited))
	stopDeadline := context.AfterFunc(limited, func() { cancel(context.Cause(limited)) })
	q.R = q.R.WithContext(ctx)
	onUpgrade = func() {
		if stopDeadline() { // otherwise the deadline expired first
			uncount()
			uncount = q.becomeLongRunning(func() { cancel(nil) })
		}
	}
	return func() { stop(); cancel(nil); uncount() }, onUpgrade
}

// startLongRunning removes the deadline of a request. The request lasts until the client or the target ends it,
// or the server shuts down. The caller calls end after the response.
func (q call) startLongRunning() (end func()) {
	ctx, cancel := context.WithCancel(q.R.Context())
	q.R = q.R.WithContext(ctx)
	done := q.becomeLongRunning(cancel)
	return func() { done(); cancel() }
}

// becomeLongRunning releases the seat of a request and removes its deadlines. It counts the request as
// long-running. It calls cancel when the server shuts down. The caller calls done after the response.
func (q call) becomeLongRunning(cancel func()) (done func()) {
	q.Seat.Release(time.Now)
	q.Metrics.Watches.Add(1)
	q.SetReadDeadline(time.Time{})
	q.SetWriteDeadline(time.Time{})
	stopCancel := context.AfterFunc(q.Serving, cancel)
	return func() {
		stopCancel()
		q.Metrics.Watches.Add(-1)
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
