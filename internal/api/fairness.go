package api

import (
	"net/http"
	"strconv"
	"strings"
)

// noSeat is upstream's answer to a request that its priority level rejects.
const noSeat = "Too many requests, please try again later."

// takeSeat blocks until the priority level of the request has a seat for it. It returns false where it has answered.
func (q *request) takeSeat() bool {
	x := q.server.config.Fairness
	if x == nil || q.lasts() && (q.verb != verbWatch || x.Disabled) {
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
	http.Error(q.w, noSeat, q.status)
	return false
}

// lasts says that a request may last as long as its client wants, as upstream knows it by. Only the beginning of a watch has a seat, and the
// beginning of the answer is an event of audit.
func (q *request) lasts() bool {
	if q.resource {
		return q.verb == verbWatch || q.verb == "proxy" || streams[q.subresource]
	}
	return strings.HasPrefix(q.r.URL.Path, "/debug/pprof/")
}

// dump returns the handler of a dump of API Priority and Fairness, nil if the path is none of one.
func (q *request) dump() http.HandlerFunc {
	name, below := strings.CutPrefix(q.r.URL.Path, "/debug/api_priority_and_fairness/")
	if !below || q.server.config.Fairness == nil {
		return nil
	}
	return q.server.config.Fairness.Dump(name)
}
