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
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// requestTimeout bounds a request that is not a watch, writePatience what a write, and the
	// arrival of a body, may take of it. Both are kube-apiserver's.
	requestTimeout = 60 * time.Second
	writePatience  = 34 * time.Second
)

// request is one request on its way.
type request struct {
	server *Server
	w      http.ResponseWriter
	r      *http.Request
	path
	attributes access.Attributes // who wants what
	v          *resource.Version // what the path addresses, once it is known
	media      media             // of the response, once it is negotiated
	audited    *audited
	trace      *Traced          // of a dry run, where the steps are asked for
	seat       flowcontrol.Seat // while it has one
	upgraded   func()           // makes the request long-running; nil if it is already, or requests no upgrade
	warnings

	began     time.Time
	cancel    context.CancelFunc // of the deadline that the client set, nil if it did not
	status    int                // written, 0 before
	size      int                // bytes of the body written
	slot      *compute.Slot      // while the request computes; nil if it is inexpensive
	weight    int64              // memory of the budget that the request holds
	hooked    bool               // the weight counts in the part for webhook-converted kinds
	unseen    bool               // the body shows only a bound of its weight
	dryRun    bool
	apply     bool
	uncounted bool // the path has a part that anybody can make up
}

// steps are the way of every request, whoever sends it and whatever it asks for, in kube-apiserver's order. A step
// returns false where it has answered.
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
	(*request).authorize,        // 403 without the right
	(*request).route,            // kind or handler
	(*request).perform,          // the verb, which writes the response
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := &request{server: s, w: w, r: r, began: time.Now()}
	s.inflight.Add(1)
	defer q.finish()
	for _, step := range steps {
		if !step(q) {
			return
		}
	}
}

// noCache is shared by all responses; nobody appends to it.
var noCache = []string{"no-cache, private"}

// begin sets the headers that every answer has, and bounds the wait for the body.
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
		q.expectBody()
	}
	return true
}

// requestInfo reads what the request is about.
func (q *request) requestInfo() bool {
	q.parse(q.r.Method, q.r.URL.Path)
	var fieldSelector, labelSelector string
	if q.resource && q.r.URL.RawQuery != "" && (q.verb == verbList || q.verb == verbClear) {
		query := q.r.URL.Query()
		fieldSelector, labelSelector = query.Get("fieldSelector"), query.Get("labelSelector")
		if q.verb == verbList {
			q.listing(query)
		}
	}
	q.attributes = access.Attributes{
		Verb: q.verb, Resource: q.resource, Path: q.r.URL.Path,
		Group: q.group, Version: q.version, Plural: q.plural, Subresource: q.subresource, Namespace: q.namespace, Name: q.name,
		FieldSelector: fieldSelector, LabelSelector: labelSelector,
	}
	return true
}

// timedOut is the 504 of a request whose time has run out, whatever its verb.
func timedOut() error {
	return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
}

// listing tells a watch from a list, and finds the one name that either may be about.
func (q *request) listing(query url.Values) {
	if w := query["watch"]; len(w) > 0 {
		if v := strings.ToLower(w[0]); v != "false" && v != "0" {
			q.verb = verbWatch
		}
	}
	if !strings.Contains(query.Get("fieldSelector"), "metadata.name") {
		return
	}
	var o internalversion.ListOptions // of which none counts if one cannot be understood
	if err := decodeOptions(query, &o); err == nil && o.FieldSelector != nil {
		if name, ok := o.FieldSelector.RequiresExactMatch("metadata.name"); ok && len(pathvalidation.IsValidPathSegmentName(name)) == 0 {
			q.name = name
		}
	}
}

// notShuttingDown refuses what comes to a server that is going away.
func (q *request) notShuttingDown() bool {
	if !q.server.draining.Load() || q.r.Context().Value(inProcess{}) != nil { // which one that came before may wait for
		return true
	}
	h := q.w.Header()
	h.Set("Connection", "close")
	h.Set("Retry-After", "5")
	q.status = http.StatusTooManyRequests
	http.Error(q.w, "The apiserver is shutting down, please try again later.", q.status)
	return false
}

// requestDeadline sets the deadline that the client asks for.
func (q *request) requestDeadline() bool {
	if q.verb == verbWatch || !strings.Contains(q.r.URL.RawQuery, "timeout=") || q.lasts() {
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
			q.failEarly(timedOut())
			return false
		}
	}
	return true
}

// authenticate finds out who asks.
func (q *request) authenticate() bool {
	u, err := q.server.config.Authenticator.Authenticate(q.r)
	if err != nil {
		if q.r.ProtoMajor == 2 && apierrors.IsUnauthorized(err) || apierrors.IsServiceUnavailable(err) {
			q.w.Header().Set("Connection", "close") // as upstream does with HTTP/2; and of a connection too many
		}
		q.failEarly(err)
		return false
	}
	q.attributes.User = u
	return true
}

// authorize asks whether they may.
func (q *request) authorize() bool {
	began := time.Time{}
	if q.audited != nil {
		began = time.Now()
	}
	decision, reason, err := q.server.config.Authorizer.Authorize(q.r.Context(), &q.attributes)
	if q.audited != nil {
		q.auditDecision(began, decision, reason, err)
	}
	switch {
	case decision == authorizer.DecisionAllow: // whatever else went wrong, as upstream has it
		return true
	case err != nil:
		q.internalError("a request could not be authorized", err)
	default:
		q.forbid(&q.attributes, reason)
	}
	return false
}

// forbid answers that somebody may not.
func (q *request) forbid(a *access.Attributes, reason string) {
	q.w.Header().Set("X-Content-Type-Options", "nosniff")
	q.fail(access.Forbidden(a, reason))
}

// internalError answers where what every request needs has failed.
func (q *request) internalError(what string, err error) {
	slog.Error(what, "method", q.r.Method, "path", q.r.URL.Path, "error", err)
	q.status = http.StatusInternalServerError
	http.Error(q.w, access.Escape(fmt.Sprintf("Internal Server Error: %q: %v", q.r.RequestURI, err)), q.status)
}

// perform does what the verb says.
func (q *request) perform() bool {
	if q.r.ContentLength != 0 {
		deepen(0)
	}
	var err error
	switch q.verb {
	case verbGet:
		err = q.get()
	case verbList:
		err = q.list()
	case verbWatch:
		err = q.watch()
	default:
		err = q.change()
	}
	if err != nil {
		q.fail(err)
	}
	return err == nil
}

// change does what changes something.
func (q *request) change() error {
	q.server.metrics.mutating.Add(1)
	defer q.server.metrics.mutating.Add(-1)
	if q.traces() {
		return q.explain()
	}
	return q.carryOut()
}

func (q *request) carryOut() error {
	switch q.verb {
	case verbCreate:
		return q.create()
	case verbUpdate:
		return q.update()
	case verbPatch:
		return q.patch()
	case verbDelete:
		return q.delete()
	case verbClear:
		return q.clear()
	}
	return q.unsupported()
}

// deepen makes room on the stack for all that a write calls, while there is little on it: net/http starts a goroutine
// a request, whose stack would otherwise be copied each time that it doubles.
//
//go:noinline
func deepen(i int) byte {
	var room [16 << 10]byte
	return room[i]
}

// target is what the engine is asked for.
func (q *request) target() engine.Target {
	t := engine.Target{Version: q.v, Name: q.name, Subresource: q.subresource}
	if q.v.Definition.Namespaced {
		t.Namespace = q.namespace
	}
	// A webhook that is down shall not hold up namespaces, garbage and the end of CRDs: where a control loop
	// asks, and metadata is all it wants to see, nothing is converted.
	if q.media.view == viewPartial || q.media.view == viewPartialList || q.r.Method == http.MethodDelete {
		t.AsStored = conversion.UsesWebhook(q.v.Definition) && q.r.Context().Value(inProcess{}) != nil
	}
	return t
}

// caller is who writes, and how the request wants it recorded. options are those of the verb.
func (q *request) caller(options runtime.Object, manager, validation string, dryRun []string) engine.Caller {
	if validation == "" {
		validation = metav1.FieldValidationWarn
	}
	q.dryRun = len(dryRun) > 0
	c := engine.Caller{
		User:         q.attributes.User,
		FieldManager: managerOr(manager, q.r.UserAgent()),
		Validation:   validation,
		DryRun:       q.dryRun,
		Warn:         q.Warn,
		Options:      options,
		Annotate:     q.annotate,
		Slot:         q.slot,
	}
	if q.audited != nil {
		c.OnDecoded = q.auditSent
	}
	if q.verb != verbCreate {
		c.MayCreate = q.mayCreate
	}
	if q.trace != nil {
		c.Trace = &q.trace.Trace
		c.DryRun, q.dryRun = true, true // whatever the options in a body say
	}
	return q.checked(c)
}

// mayCreate asks whether somebody may create what an update or an apply has not found.
func (q *request) mayCreate() error {
	a := q.attributes
	a.Verb = verbCreate
	decision, reason, err := q.server.config.Authorizer.Authorize(q.r.Context(), &a)
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	return access.Forbidden(&a, reason)
}

// limited is the context of a write.
func (q *request) limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(q.r.Context(), q.server.patience())
}

func (q *request) query() url.Values { return q.r.URL.Query() }

// finish is what every request ends with: a panic becomes a 500, and what was done is
// counted. Paths that lead nowhere are not counted: anybody can make up any number of them.
func (q *request) finish() {
	s, m := q.server, q.server.metrics
	p := recover()
	if p != nil {
		defer q.panicked(p)
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
	if q.v != nil && q.status != 0 && !q.uncounted {
		k := seriesKey{q.group, q.version, q.plural, q.subresource, q.verb, q.status, q.name != "", q.namespace != "", q.dryRun, q.apply}
		m.mu.RLock()
		alike := m.series[k]
		m.mu.RUnlock()
		if alike == nil {
			alike = m.find(k, q.v)
		}
		alike.requests.Inc()
		alike.latency.Observe(time.Since(q.began).Seconds())
		if alike.sizes != nil {
			alike.sizes.Observe(float64(q.size))
		}
	}
	if q.audited != nil {
		q.auditEnd(p)
	}
	if s.inflight.Add(-1) == 0 && s.draining.Load() {
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// panicked logs what went wrong and answers 500 if nothing was answered yet.
func (q *request) panicked(p any) {
	if p == http.ErrAbortHandler {
		panic(p)
	}
	slog.Error("a request panicked", "method", q.r.Method, "path", q.r.URL.Path, "panic", p, "stack", string(debug.Stack()))
	if q.status != 0 {
		panic(http.ErrAbortHandler) // the client must not take what it got for all
	}
	q.status = http.StatusInternalServerError
	http.Error(q.w, "This request caused apiserver to panic. Look in the logs for details.", q.status)
}
