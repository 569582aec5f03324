package api

import (
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/trellis-k8s/trellis/internal/api/filters"
	"github.com/trellis-k8s/trellis/internal/api/request"
)

// steps returns the steps of every request, in kube-apiserver's order. A step returns false if it wrote the response
// and no other step must follow.
func (s *Server) steps() []func(*request.Request) bool {
	f := s.filters
	return []func(*request.Request) bool{
		f.Begin,             // headers of every response
		filters.RequestInfo, // attributes from path and query
		f.NotShuttingDown,   // 429 while the server shuts down
		f.RequestDeadline,   // deadline from the query
		f.Authenticate,      // user
		f.Audit,             // audit level
		f.Impersonate,       // impersonated user
		f.TakeSeat,          // API Priority and Fairness
		f.Authorize,         // 403 without permission
		f.Route,             // kind or aggregated API server, and errors of the path
		f.Negotiate,         // media types
		s.serve,             // the verb or another handler, which writes the response
	}
}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.valid != nil && isFenced(r.URL.Path) {
		w = &fence{ResponseWriter: w, valid: s.valid}
	}
	q := &request.Request{W: w, R: r, Limits: s.limits, Negotiator: s.negotiator, Began: time.Now()}
	s.inflight.Add(1)
	defer s.complete(q)
	for _, step := range s.pipeline {
		if !step(q) {
			return
		}
	}
}

// serve serves a request that has passed all other steps.
func (s *Server) serve(q *request.Request) bool {
	if !q.Resource && q.Service == nil {
		s.nonResources.Serve(q)
		return true
	}
	err := s.handlers.Serve(q)
	if err != nil {
		q.Fail(err)
	}
	return err == nil
}

// complete ends every request. It turns a panic into a 500, releases resources and records metrics and the audit
// event.
func (s *Server) complete(q *request.Request) {
	p := recover()
	if p != nil {
		defer handlePanic(q, p)
	}
	if f, fenced := q.W.(*fence); fenced && f.refused {
		q.Status = http.StatusServiceUnavailable
	}
	if q.Cancel != nil {
		q.Cancel()
	}
	if q.Weight > 0 {
		q.ReleaseMemory()
	}
	if q.Slot != nil {
		q.Slot.Release()
	}
	q.Seat.Release(time.Now)
	s.metrics.Observe(q)
	if q.AuditState != nil {
		filters.AuditEnd(q, p)
	}
	if s.inflight.Add(-1) == 0 && s.serving.Err() != nil {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// handlePanic logs the panic p and writes a 500 if no response has been written.
func handlePanic(q *request.Request, p any) {
	if p == http.ErrAbortHandler {
		panic(p)
	}
	slog.Error("request panicked", "method", q.R.Method, "path", q.R.URL.Path,
		"panic", p, "stack", string(debug.Stack()))
	if q.Status != 0 {
		panic(http.ErrAbortHandler) // the client must not regard the partial response as complete
	}
	q.Status = http.StatusInternalServerError
	http.Error(q.W, "This request caused apiserver to panic. Look in the logs for details.", q.Status)
}
