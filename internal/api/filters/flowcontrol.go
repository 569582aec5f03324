package filters

import (
	"net/http"
	"strconv"

	"github.com/trellis-k8s/trellis/internal/api/request"
)

// TakeSeat blocks until the request's priority level has a seat for it. It returns false if the request was
// rejected and a response was written.
func (f *Filters) TakeSeat(q *request.Request) bool {
	x := f.Fairness
	if x == nil || q.IsLongRunning() && (q.Verb != request.VerbWatch || x.Disabled) {
		return true
	}
	var ok bool
	q.Seat, ok = x.Take(q.R.Context(), &q.Attributes, q.Began)
	h := q.W.Header()
	if schema, level := q.Seat.Matched(); schema != nil {
		h["X-Kubernetes-Pf-Flowschema-Uid"], h["X-Kubernetes-Pf-Prioritylevel-Uid"] = schema, level
	}
	if ok {
		return true
	}
	h["Retry-After"] = []string{strconv.FormatInt(x.RetryAfter(&q.Seat), 10)}
	q.Status = http.StatusTooManyRequests
	http.Error(q.W, request.NoSeatMessage, q.Status)
	return false
}

// expensiveQuery is the number of bytes above which the query of a URL is expensive. Its selectors are parsed and
// validated.
const expensiveQuery = 16 << 10

// takeSlotForQuery takes a slot for a request with an expensive query. It returns false if a response was
// written.
func takeSlotForQuery(q *request.Request) bool {
	if q.IsLongRunning() && q.Verb != request.VerbWatch {
		return true // the server does not parse the query of a proxied request
	}
	if err := q.TakeSlot(0); err != nil {
		q.Fail(err)
		return false
	}
	return true
}
