package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/compute"
	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// defaultRequestTimeout is the default of Config.RequestTimeout. maxWriteTimeout is the maximum timeout of a
	// write, and of reading a body. Both values are kube-apiserver's.
	defaultRequestTimeout = 60 * time.Second
	maxWriteTimeout       = 34 * time.Second
)

// request is the state of one request.
type request struct {
	server *Server
	w      http.ResponseWriter
	r      *http.Request
	path
	parsedQuery url.Values           // result of query; nil before its first call
	attributes  access.Attributes    // input of the authorizer
	v           *resource.Version    // resource in the path; nil until it is known
	service     *resource.APIService // API server that serves the path; nil if this server does
	connectTo   *resource.Connect    // set if the subresource connects requests to another server
	media       media                // negotiated form of the response; not set before negotiate
	auditState  *auditState
	trace       *Traced          // set for a traced dry run; otherwise nil
	seat        flowcontrol.Seat // seat of API Priority and Fairness, if the request holds one
	onUpgrade   func()           // called when an upgrade request is upgraded; nil for other requests
	warnings

	began           time.Time
	cancel          context.CancelFunc // cancels the deadline that the client requested; nil if there is none
	status          int                // of the response; 0 before it is written
	size            int                // bytes of the response body written
	slot            *compute.Slot      // nil if the request is inexpensive
	weight          int64              // bytes of the memory budget that the request holds
	inWebhookShare  bool               // the weight is also acquired from budget.webhooks
	weightEstimated bool               // only bounds of the weight of the body are known
	dryRun          bool
	apply           bool
	skipMetrics     bool // the path has an unknown subresource, so the request is not in the metrics
}

// steps are the steps of every request, in kube-apiserver's order. A step returns false if it wrote the response
// and no other step must follow.
var steps = [...]func(*request) bool{
	(*request).begin,            // headers of every response
	(*request).requestInfo,      // attributes from path and query
	(*request).notShuttingDown,  // 429 while the server shuts down
	(*request).requestDeadline,  // deadline from the query
	(*request).authenticate,     // user
	(*request).audit,            // audit level
	(*request).impersonate,      // impersonated user
	(*request).takeSeat,         // API Priority and Fairness
	(*request).takeSlotForQuery, // before a long selector is parsed
	(*request).authorize,        // 403 without permission
	(*request).route,            // kind or aggregated API server, and errors of the path
	(*request).negotiate,        // media types
	(*request).serve,            // the verb or another handler, which writes the response
}

// ServeHTTP serves one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := &request{server: s, w: w, r: r, began: time.Now()}
	s.inflight.Add(1)
	defer q.complete()
	for _, step := range steps {
		if !step(q) {
			return
		}
	}
}

// noCache is shared by all responses and must not be modified.
var noCache = []string{"no-cache, private"}

// begin sets the headers of every response and the deadline of the body.
func (q *request) begin() bool {
	h := q.w.Header()
	h["Cache-Control"] = noCache
	if id := q.r.Header["Audit-Id"]; len(id) > 0 && id[0] != "" {
		h["Audit-Id"] = id[:1]
	} else {
		h["Audit-Id"] = []string{uuid.NewString()}
	}
	if q.server.config.Audit.Sink != nil {
		q.beginAudit(h["Audit-Id"][0])
	}
	if q.r.ContentLength != 0 {
		q.setBodyDeadline()
	}
	return true
}

// requestInfo sets the attributes of the request from its path and query.
func (q *request) requestInfo() bool {
	q.parse(q.r.Method, q.r.URL.Path)
	var fieldSelector, labelSelector string
	if q.resource && q.r.URL.RawQuery != "" && (q.verb == verbList || q.verb == verbDeleteCollection) {
		query := q.query()
		fieldSelector, labelSelector = query.Get("fieldSelector"), query.Get("labelSelector")
		if q.verb == verbList {
			q.listVerb(query)
		}
	}
	q.attributes = access.Attributes{
		Verb: q.verb, Resource: q.resource, Path: q.r.URL.Path,
		Group: q.group, Version: q.version, Plural: q.plural, Subresource: q.subresource,
		Namespace: q.namespace, Name: q.name,
		FieldSelector: fieldSelector, LabelSelector: labelSelector,
	}
	return true
}

// timeoutError returns the 504 for a request whose deadline has expired.
func timeoutError() error {
	return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
}

// listVerb changes the verb list to watch if the query requests a watch. It sets the name if the field selector
// selects one object.
func (q *request) listVerb(query url.Values) {
	if w := query["watch"]; len(w) > 0 {
		if v := strings.ToLower(w[0]); v != "false" && v != "0" {
			q.verb = verbWatch
		}
	}
	if !strings.Contains(query.Get("fieldSelector"), "metadata.name") {
		return
	}
	var o internalversion.ListOptions // ignored if any option is invalid
	if err := decodeOptions(query, &o); err == nil && o.FieldSelector != nil {
		name, ok := o.FieldSelector.RequiresExactMatch("metadata.name")
		if ok && len(pathvalidation.IsValidPathSegmentName(name)) == 0 {
			q.name = name
		}
	}
}

// notShuttingDown rejects requests while the server shuts down.
func (q *request) notShuttingDown() bool {
	// Requests of the loopback are served, because a request in flight may wait for one of them.
	if !q.server.draining.Load() || q.r.Context().Value(inProcess{}) != nil {
		return true
	}
	h := q.w.Header()
	h.Set("Connection", "close")
	h.Set("Retry-After", "5")
	q.status = http.StatusTooManyRequests
	http.Error(q.w, "The apiserver is shutting down, please try again later.", q.status)
	return false
}

// requestDeadline sets the deadline that the client requests.
func (q *request) requestDeadline() bool {
	if q.verb == verbWatch || !strings.Contains(q.r.URL.RawQuery, "timeout=") || q.isLongRunning() {
		return true
	}
	value := q.query().Get("timeout")
	if value == "" {
		return true
	}
	timeout, err := time.ParseDuration(value)
	if err != nil {
		q.failEarly(apierrors.NewBadRequest("invalid timeout specified in the request URL - " + err.Error()))
		return false
	}
	if timeout > 0 && timeout < q.server.config.RequestTimeout {
		var ctx context.Context
		ctx, q.cancel = context.WithDeadline(q.r.Context(), q.began.Add(timeout))
		q.r = q.r.WithContext(ctx)
		if ctx.Err() != nil {
			q.failEarly(timeoutError())
			return false
		}
	}
	return true
}

// authenticate sets the user of the request.
func (q *request) authenticate() bool {
	u, err := q.server.config.Authenticator.Authenticate(q.r)
	if err != nil {
		if q.r.ProtoMajor == 2 && apierrors.IsUnauthorized(err) || apierrors.IsServiceUnavailable(err) {
			// Like upstream, end the HTTP/2 connection after a 401. A 503 means that there are too many
			// connections.
			q.w.Header().Set("Connection", "close")
		}
		q.failEarly(err)
		return false
	}
	q.attributes.User = u
	return true
}

// authorize rejects a request that the authorizer does not allow.
func (q *request) authorize() bool {
	began := time.Time{}
	if q.auditState != nil {
		began = time.Now()
	}
	decision, reason, err := q.server.config.Authorizer.Authorize(q.r.Context(), &q.attributes)
	if q.auditState != nil {
		q.auditAuthorization(began, decision, reason, err)
	}
	switch {
	case decision == authorizer.DecisionAllow: // like upstream, err is ignored
		return true
	case err != nil:
		q.internalError("cannot authorize a request", err)
	default:
		q.forbid(&q.attributes, reason)
	}
	return false
}

// forbid writes a 403.
func (q *request) forbid(a *access.Attributes, reason string) {
	q.w.Header().Set("X-Content-Type-Options", "nosniff")
	q.fail(access.Forbidden(a, reason))
}

// internalError logs err and writes a 500, after an internal failure that is not specific to the verb.
func (q *request) internalError(message string, err error) {
	slog.Error(message, "method", q.r.Method, "path", q.r.URL.Path, "error", err)
	q.status = http.StatusInternalServerError
	http.Error(q.w, access.Escape(fmt.Sprintf("Internal Server Error: %q: %v", q.r.RequestURI, err)), q.status)
}

// serve serves a request whose path, verb and media types are valid.
func (q *request) serve() bool {
	if q.r.ContentLength != 0 && q.v != nil {
		growStack(0)
	}
	var err error
	switch {
	case !q.resource:
		q.serveNonResource()
	case q.service != nil:
		q.proxy(q.service)
	case q.connectTo != nil:
		err = q.connect(q.connectTo)
	case q.verb == verbGet:
		err = q.get()
	case q.verb == verbList:
		err = q.list()
	case q.verb == verbWatch:
		err = q.watch()
	default:
		err = q.serveWrite()
	}
	if err != nil {
		q.fail(err)
	}
	return err == nil
}

// serveWrite serves a verb that modifies objects.
func (q *request) serveWrite() error {
	q.server.metrics.mutating.Add(1)
	defer q.server.metrics.mutating.Add(-1)
	if q.wantsTrace() {
		return q.serveTraced()
	}
	return q.dispatchWrite()
}

func (q *request) dispatchWrite() error {
	switch q.verb {
	case verbCreate:
		return q.create()
	case verbUpdate:
		return q.update()
	case verbPatch:
		return q.patch()
	case verbDelete:
		return q.delete()
	}
	return q.deleteCollection()
}

// growStack grows the stack once for all functions that a write calls. net/http starts a goroutine for each
// request. Its stack would otherwise be copied each time that its size doubles.
//
//go:noinline
func growStack(i int) byte {
	var space [16 << 10]byte
	return space[i]
}

// target returns the target of the request for the engine.
func (q *request) target() verb.Target {
	t := verb.Target{Version: q.v, Name: q.name, Subresource: q.subresource}
	if q.v.Definition.Namespaced {
		t.Namespace = q.namespace
	}
	// A conversion webhook that is down must not block controllers that handle namespaces, garbage and CRDs.
	// Their requests for metadata and their deletions skip the conversion.
	if q.media.view == viewPartial || q.media.view == viewPartialList || q.r.Method == http.MethodDelete {
		t.AsStored = conversion.UsesWebhook(q.v.Definition) && q.r.Context().Value(inProcess{}) != nil
	}
	return t
}

// caller returns the caller of a write for the engine. options are the options of the verb.
func (q *request) caller(options runtime.Object, manager, validation string, dryRun []string) verb.Caller {
	if validation == "" {
		validation = metav1.FieldValidationWarn
	}
	q.dryRun = len(dryRun) > 0
	c := verb.Caller{
		User:         q.attributes.User,
		FieldManager: fieldManager(manager, q.r.UserAgent()),
		Validation:   validation,
		DryRun:       q.dryRun,
		Warn:         q.Warn,
		Options:      options,
		Annotate:     q.annotate,
		Slot:         q.slot,
	}
	if q.auditState != nil {
		c.OnDecoded = q.auditRequestObject
	}
	if q.verb != verbCreate {
		c.MayCreate = q.mayCreate
	}
	if q.trace != nil {
		c.Trace = &q.trace.Trace
		c.DryRun, q.dryRun = true, true // even if the options in the body do not request a dry run
	}
	return q.withMemoryCheck(c)
}

// mayCreate returns an error if the caller has no right to create the object. An update or an apply needs this
// right if the object does not exist.
func (q *request) mayCreate() error {
	a, decision, reason, err := q.authorizeCreate()
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	return access.Forbidden(a, reason)
}

// authorizeCreate authorizes the creation of the resource in the path. a is the authorized request.
func (q *request) authorizeCreate() (a *access.Attributes, _ authorizer.Decision, reason string, err error) {
	create := q.attributes
	create.Verb = verbCreate
	decision, reason, err := q.server.config.Authorizer.Authorize(q.r.Context(), &create)
	return &create, decision, reason, err
}

// writeContext returns the context of a write, with its timeout.
func (q *request) writeContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(q.r.Context(), q.server.writeTimeout())
}

// query returns the query of the URL. It is parsed once. The caller must not modify it.
func (q *request) query() url.Values {
	if q.parsedQuery == nil && q.r.URL.RawQuery != "" {
		q.parsedQuery = q.r.URL.Query()
	}
	return q.parsedQuery
}

// complete ends every request. It turns a panic into a 500, releases resources and records metrics and the audit
// event. Metrics exclude paths that are not served, because a client can request any number of them.
func (q *request) complete() {
	s, m := q.server, q.server.metrics
	p := recover()
	if p != nil {
		defer q.handlePanic(p)
	}
	if q.cancel != nil {
		q.cancel()
	}
	if q.weight > 0 {
		q.releaseBody()
	}
	if q.slot != nil {
		q.slot.Release()
	}
	q.seat.Release(time.Now)
	if q.v != nil && q.status != 0 && !q.skipMetrics {
		k := seriesKey{
			q.group, q.version, q.plural, q.subresource, q.verb, q.status,
			q.name != "", q.namespace != "", q.dryRun, q.apply,
		}
		m.mu.RLock()
		metrics := m.series[k]
		m.mu.RUnlock()
		if metrics == nil {
			metrics = m.seriesFor(k, q.v)
		}
		metrics.requests.Inc()
		metrics.latency.Observe(time.Since(q.began).Seconds())
		if metrics.sizes != nil {
			metrics.sizes.Observe(float64(q.size))
		}
	}
	if q.auditState != nil {
		q.auditEnd(p)
	}
	if s.inflight.Add(-1) == 0 && s.draining.Load() {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// handlePanic logs the panic p and writes a 500 if no response has been written.
func (q *request) handlePanic(p any) {
	if p == http.ErrAbortHandler {
		panic(p)
	}
	slog.Error("request panicked", "method", q.r.Method, "path", q.r.URL.Path,
		"panic", p, "stack", string(debug.Stack()))
	if q.status != 0 {
		panic(http.ErrAbortHandler) // the client must not regard the partial response as complete
	}
	q.status = http.StatusInternalServerError
	http.Error(q.w, "This request caused apiserver to panic. Look in the logs for details.", q.status)
}
