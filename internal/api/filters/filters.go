// Package filters implements the steps that a request passes before its verb is served: authentication, audit,
// impersonation, flow control, authorization, routing and negotiation.
package filters

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/engine"
)

// Filters are the steps of a request from its first byte to the routing.
type Filters struct {
	Engine        *engine.Engine
	Authenticator *access.Authenticator
	Authorizer    access.Authorizer
	Fairness      *flowcontrol.Controller // API Priority and Fairness; nil admits every request
	Auditing      Audit                   // policy and sink
	EnableCBOR    bool
	Serving       context.Context // canceled when the server shuts down
	Impersonator  http.Handler
}

// noCache is shared by all responses and must not be modified.
var noCache = []string{"no-cache, private"}

// Begin sets the headers of every response and the deadline of the body.
func (f *Filters) Begin(q *request.Request) bool {
	h := q.W.Header()
	h["Cache-Control"] = noCache
	if id := q.R.Header["Audit-Id"]; len(id) > 0 && id[0] != "" {
		h["Audit-Id"] = id[:1]
	} else {
		h["Audit-Id"] = []string{uuid.NewString()}
	}
	if f.Auditing.Sink != nil {
		f.beginAudit(q, h["Audit-Id"][0])
	}
	if q.R.ContentLength != 0 {
		q.SetBodyDeadline()
	}
	return true
}

// RequestInfo sets the attributes of the request from its path and query.
func RequestInfo(q *request.Request) bool {
	q.Parse(q.R.Method, q.R.URL.Path)
	var fieldSelector, labelSelector string
	if q.Resource && q.R.URL.RawQuery != "" && (q.Verb == request.VerbList || q.Verb == request.VerbDeleteCollection) {
		query := q.Query()
		fieldSelector, labelSelector = query.Get("fieldSelector"), query.Get("labelSelector")
		if q.Verb == request.VerbList {
			listVerb(q, query)
		}
	}
	q.Attributes = access.Attributes{
		Verb: q.Verb, Resource: q.Resource, Path: q.R.URL.Path,
		Group: q.Group, Version: q.Version, Plural: q.Plural, Subresource: q.Subresource,
		Namespace: q.Namespace, Name: q.Name,
		FieldSelector: fieldSelector, LabelSelector: labelSelector,
	}
	return true
}

// listVerb changes the verb list to watch if the query requests a watch. It sets the name if the field selector
// selects one object.
func listVerb(q *request.Request, query url.Values) {
	if w := query["watch"]; len(w) > 0 {
		if v := strings.ToLower(w[0]); v != "false" && v != "0" {
			q.Verb = request.VerbWatch
		}
	}
	if !strings.Contains(query.Get("fieldSelector"), "metadata.name") {
		return
	}
	var o internalversion.ListOptions // ignored if any option is invalid
	if err := request.DecodeOptions(query, &o); err == nil && o.FieldSelector != nil {
		name, ok := o.FieldSelector.RequiresExactMatch("metadata.name")
		if ok && len(pathvalidation.IsValidPathSegmentName(name)) == 0 {
			q.Name = name
		}
	}
}

// NotShuttingDown rejects requests while the server shuts down.
func (f *Filters) NotShuttingDown(q *request.Request) bool {
	// Requests of the loopback are served, because a request in flight may wait for one of them.
	if f.Serving.Err() == nil || q.IsInProcess() {
		return true
	}
	h := q.W.Header()
	h.Set("Connection", "close")
	h.Set("Retry-After", "5")
	q.Status = http.StatusTooManyRequests
	http.Error(q.W, "The apiserver is shutting down, please try again later.", q.Status)
	return false
}

// RequestDeadline sets the deadline that the client requests.
func (f *Filters) RequestDeadline(q *request.Request) bool {
	if q.Verb == request.VerbWatch || !strings.Contains(q.R.URL.RawQuery, "timeout=") || q.IsLongRunning() {
		return true
	}
	value := q.Query().Get("timeout")
	if value == "" {
		return true
	}
	timeout, err := time.ParseDuration(value)
	if err != nil {
		f.failEarly(q, apierrors.NewBadRequest("invalid timeout specified in the request URL - "+err.Error()))
		return false
	}
	if timeout > 0 && timeout < q.Timeout {
		var ctx context.Context
		ctx, q.Cancel = context.WithDeadline(q.R.Context(), q.Began.Add(timeout))
		q.R = q.R.WithContext(ctx)
		if ctx.Err() != nil {
			f.failEarly(q, request.TimeoutError())
			return false
		}
	}
	return true
}

// Authenticate sets the user of the request.
func (f *Filters) Authenticate(q *request.Request) bool {
	u, err := f.Authenticator.Authenticate(q.R)
	if err != nil {
		if q.R.ProtoMajor == 2 && apierrors.IsUnauthorized(err) || apierrors.IsServiceUnavailable(err) {
			// Like upstream, end the HTTP/2 connection after a 401. A 503 means that there are too many
			// connections.
			q.W.Header().Set("Connection", "close")
		}
		f.failEarly(q, err)
		return false
	}
	q.Attributes.User = u
	return true
}

// Authorize rejects a request that the authorizer does not allow.
func (f *Filters) Authorize(q *request.Request) bool {
	if len(q.R.URL.RawQuery) > expensiveQuery && !takeSlotForQuery(q) { // the authorizer parses selectors
		return false
	}
	began := time.Time{}
	if q.AuditState != nil {
		began = time.Now()
	}
	decision, reason, err := f.Authorizer.Authorize(q.R.Context(), &q.Attributes)
	if q.AuditState != nil {
		auditAuthorization(q, began, decision, reason, err)
	}
	switch {
	case decision == authorizer.DecisionAllow: // like upstream, err is ignored
		return true
	case err != nil:
		q.InternalError("cannot authorize a request", err)
	default:
		q.Forbid(reason)
	}
	return false
}
