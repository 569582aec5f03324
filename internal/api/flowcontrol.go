package api

import (
	"net/http"
	"strconv"
	"strings"
)

// noSeatMessage is upstream's response to a request that its priority level rejects.
const noSeatMessage = "Too many requests, please try again later."

// takeSeat blocks until the request's priority level has a seat for it. It returns false if the request was
// rejected and a response was written.
func (q *request) takeSeat() bool {
	x := q.server.config.Fairness
	if x == nil || q.isLongRunning() && (q.verb != verbWatch || x.Disabled) {
		return true
	}
	var ok bool
	q.seat, ok = x.Take(q.r.Context(), &q.attributes, q.began)
	h := q.w.Header()
	if schema, level := q.seat.Matched(); schema != nil {
		h["X-Kubernetes-Pf-Flowschema-Uid"], h["X-Kubernetes-Pf-Prioritylevel-Uid"] = schema, level
	}
	if ok {
		return true
	}
	h["Retry-After"] = []string{strconv.FormatInt(x.RetryAfter(&q.seat), 10)}
	q.status = http.StatusTooManyRequests
	http.Error(q.w, noSeatMessage, q.status)
	return false
}

// isLongRunning reports whether upstream regards the request as long-running. Long-running requests hold no seat,
// but a watch holds one until its initial events are sent. Long-running requests have an audit event of the stage
// ResponseStarted.
func (q *request) isLongRunning() bool {
	if q.resource {
		return q.verb == verbWatch || q.verb == "proxy" || longRunningSubresources[q.subresource]
	}
	return strings.HasPrefix(q.r.URL.Path, "/debug/pprof/")
}

// flowControlDump returns the handler of a debug dump of API Priority and Fairness, or nil if the path is not a
// dump.
func (q *request) flowControlDump() http.HandlerFunc {
	name, below := strings.CutPrefix(q.r.URL.Path, "/debug/api_priority_and_fairness/")
	if !below || q.server.config.Fairness == nil {
		return nil
	}
	return q.server.config.Fairness.Dump(name)
}
