package api

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/access"
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

// serve answers a request. It reads from top to bottom: what is asked, who asks, may they,
// then the verb.
func (q *request) serve() {
	q.path, q.v = path{}, nil
	if q.r.ContentLength != 0 {
		q.expectBody()
	}
	q.parse(q.r.Method, q.r.URL.Path)
	if (q.detour || q.r.URL.RawQuery != "" || q.server.draining.Load()) && !q.prepare() {
		return
	}
	if !q.admitted() {
		return
	}
	if !q.resource {
		q.serveOther()
		return
	}
	q.v = q.server.live.Find(q.group, q.version, q.plural)
	if q.r.ContentLength != 0 {
		deepen(0)
	}
	q.serveResource()
}

// deepen makes room on the stack for all that a write calls, while there is little on it: net/http starts a goroutine
// a request, whose stack would otherwise be copied each time that it doubles.
//
//go:noinline
func deepen(i int) byte {
	var room [16 << 10]byte
	return room[i]
}

// prepare looks at what few requests have: options that decide the verb or the
// time a request may take. It returns false where the request has been answered.
func (q *request) prepare() bool {
	if q.server.draining.Load() {
		q.refuse()
		return false
	}
	if q.resource && q.verb == verbList {
		q.listing()
	}
	raw := q.r.URL.RawQuery
	if !strings.Contains(raw, "timeout=") || q.verb == verbWatch {
		return true
	}
	value := q.r.URL.Query().Get("timeout")
	if value == "" {
		return true
	}
	timeout, err := time.ParseDuration(value)
	if err != nil {
		q.fail(apierrors.NewBadRequest("invalid timeout specified in the request URL - " + err.Error()))
		return false
	}
	if timeout > 0 && timeout < q.server.config.RequestTimeout {
		var ctx context.Context
		ctx, q.cancel = context.WithDeadline(q.r.Context(), q.began.Add(timeout))
		q.r = q.r.WithContext(ctx)
		if ctx.Err() != nil {
			q.fail(timedOut())
			return false
		}
	}
	return true
}

// timedOut is the 504 of a request whose time has run out, whatever its verb.
func timedOut() error {
	return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
}

// listing tells a watch from a list, and finds the one name that either may be about.
func (q *request) listing() {
	if q.r.URL.RawQuery == "" {
		return
	}
	query := q.r.URL.Query()
	if w := query["watch"]; len(w) > 0 {
		if v := strings.ToLower(w[0]); v != "false" && v != "0" {
			q.verb = verbWatch
		}
	}
	selector := query.Get("fieldSelector")
	if !strings.Contains(selector, "metadata.name") {
		return
	}
	if s, err := fields.ParseSelector(selector); err == nil {
		if name, ok := s.RequiresExactMatch("metadata.name"); ok && len(pathvalidation.IsValidPathSegmentName(name)) == 0 {
			q.name = name
		}
	}
}

// refuse is the answer of a server that is going away.
func (q *request) refuse() {
	h := q.w.Header()
	h.Set("Connection", "close")
	h.Set("Retry-After", "5")
	q.status = http.StatusTooManyRequests
	http.Error(q.w, "The apiserver is shutting down, please try again later.", q.status)
}

// admitted finds out who asks and whether they may; where not, it has answered.
func (q *request) admitted() bool {
	var err error
	if q.user, err = q.server.authenticator.Authenticate(q.r); err == nil {
		err = q.impersonate()
	}
	if err == nil {
		err = q.server.authorizer.Authorize(q.attributes(q.verb))
	}
	if err == nil {
		return true
	}
	if apierrors.IsForbidden(err) {
		q.w.Header().Set("X-Content-Type-Options", "nosniff")
	}
	if q.r.ProtoMajor == 2 && apierrors.IsUnauthorized(err) {
		q.w.Header().Set("Connection", "close") // as upstream: strangers do not keep HTTP/2 connections
	}
	q.fail(err)
	return false
}

func (q *request) attributes(verb string) access.Attributes {
	return access.Attributes{
		User: q.user, Verb: verb, Resource: q.resource, Path: q.r.URL.Path,
		Group: q.group, Version: q.version, Plural: q.plural, Subresource: q.subresource, Namespace: q.namespace, Name: q.name,
	}
}

// fits says whether kind and path agree on the scope.
func (q *request) fits() bool {
	if !q.v.Definition.Namespaced {
		return q.namespace == "" || q.plural == "namespaces" && q.group == ""
	}
	return q.namespace != "" || q.name == "" && (q.verb == verbList || q.verb == verbWatch) || q.selectsName()
}

// selectsName is true where the name comes from a field selector, not from the path.
func (q *request) selectsName() bool {
	return q.verb == verbList || q.verb == verbWatch && !q.watchPrefix
}

// await finds a kind that the catalog did not know a moment ago.
func (q *request) await() {
	ctx, cancel := context.WithTimeout(q.r.Context(), writePatience)
	defer cancel()
	catalog, err := q.server.live.Wait(ctx, q.server.engine.Store.Head().Revision())
	if err == nil {
		q.v = catalog.Find(q.group, q.version, q.plural)
	}
}

// serveResource answers a request for a kind.
func (q *request) serveResource() {
	if q.v == nil {
		q.await()
	}
	switch {
	case q.v == nil || q.deep || !q.fits() && q.v.Definition.Custom != nil:
		q.notServed()
		return
	case !q.fits():
		q.fail(q.mismatch())
		return
	}
	if q.v.Deprecated {
		q.Warn(q.v.DeprecationWarning)
	}
	if err := q.allowed(); err != nil {
		q.fail(err)
		return
	}
	if err := q.serveVerb(); err != nil {
		q.fail(err)
	}
}

func (q *request) serveVerb() error {
	switch q.verb {
	case verbGet, verbList, verbWatch:
	default:
		q.server.metrics.mutating.Add(1)
		defer q.server.metrics.mutating.Add(-1)
	}
	switch q.verb {
	case verbGet:
		return q.get()
	case verbList:
		return q.list()
	case verbWatch:
		return q.watch()
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

// allowed compares the request with the verbs and subresources of the kind.
func (q *request) allowed() error {
	verbs := q.v.Definition.Verbs
	if q.subresource != "" {
		known := false
		if verbs, known = subresourceVerbs(q.v, q.subresource); !known {
			q.uncounted = true
			if q.v.Definition.Custom == nil {
				return missing()
			}
			return apierrors.NewNotFound(q.v.GroupResource(), q.name)
		}
	}
	if q.name != "" {
		if problems := pathvalidation.IsValidPathSegmentName(q.name); len(problems) > 0 {
			return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", q.name, strings.Join(problems, ";")))
		}
	}
	if q.namespace == "." || q.namespace == ".." {
		return apierrors.NewBadRequest(fmt.Sprintf("Namespace parameter invalid: %q: may not be '%s'", q.namespace, q.namespace))
	}
	for _, v := range verbs {
		if v == q.verb {
			return q.wellAimed()
		}
	}
	return q.unsupported()
}

func subresourceVerbs(v *resource.Version, name string) (verbs []string, known bool) {
	if name == "status" && v.Status || name == "scale" && v.Scale != nil {
		return []string{verbGet, verbPatch, verbUpdate}, true
	}
	for _, s := range v.Subresources {
		if s.Name == name {
			return s.Verbs, true
		}
	}
	return nil, false
}

// wellAimed refuses a verb for one object on a collection, and the other way round.
func (q *request) wellAimed() error {
	switch q.verb {
	case verbUpdate, verbPatch:
		if q.name == "" {
			return q.unsupported()
		}
	case verbCreate:
		if q.name != "" {
			return q.unsupported()
		}
	}
	return nil
}

// unsupported is the 405.
func (q *request) unsupported() error {
	if q.v.Definition.Custom == nil {
		return apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "405: Method Not Allowed", 0, false)
	}
	return apierrors.NewMethodNotSupported(q.v.GroupResource(), q.verb)
}

// mismatch is what a built-in kind says to a path of the wrong scope: a method that does not
// exist across namespaces, or nothing at all.
func (q *request) mismatch() error {
	if q.v.Definition.Namespaced && q.name == "" {
		return q.unsupported()
	}
	return missing()
}

// missing is the 404 of a path below a known group that leads nowhere.
func missing() error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "404: Page Not Found", 0, false)
}

// notServed is what kube-apiserver says to a path that no handler has: a Status below
// its own groups, a line of text elsewhere, from which clients make the same Status.
func (q *request) notServed() {
	if q.group == "" && q.version == "v1" && strings.HasPrefix(q.r.URL.Path, "/api/") {
		q.fail(missing())
		return
	}
	for d := range q.server.live.Load().Definitions() {
		if d.Custom != nil {
			continue
		}
		for _, v := range d.Versions {
			if v.GroupVersion.Group == q.group && v.GroupVersion.Version == q.version && q.group != "" {
				q.fail(missing())
				return
			}
		}
	}
	// The media type keeps clients from taking the Status as it is: to the one they make of a
	// plain 404 they add what they asked for, and kubectl's users read that.
	h := q.w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	q.status = http.StatusNotFound
	q.w.WriteHeader(q.status)
	if body, err := json.Marshal(statusOf(missing())); err == nil {
		_, _ = q.w.Write(body) // the client has gone; there is nobody to tell
	}
}

// target is what the engine is asked for.
func (q *request) target() engine.Target {
	t := engine.Target{Version: q.v, Name: q.name, Subresource: q.subresource}
	if q.v.Definition.Namespaced {
		t.Namespace = q.namespace
	}
	t.AsStored = conversion.Remote(q.v.Definition) && q.metadataLoop()
	return t
}

// metadataLoop reports that a control loop asks, and that metadata is all it wants to see: a webhook that is
// down shall not hold up namespaces, garbage and the end of CRDs.
func (q *request) metadataLoop() bool {
	if q.r.Context().Value(inProcess{}) == nil {
		return false
	}
	return q.media.view == viewPartial || q.media.view == viewPartialList || q.r.Method == http.MethodDelete
}

// caller is who writes, and how the request wants it recorded.
func (q *request) caller(manager, validation string, dryRun []string) engine.Caller {
	if validation == "" {
		validation = metav1.FieldValidationWarn
	}
	q.dryRun = len(dryRun) > 0
	return engine.Caller{
		User:         q.user,
		FieldManager: managerOr(manager, q.r.UserAgent()),
		Validation:   validation,
		DryRun:       q.dryRun,
		Warn:         q.Warn,
	}
}

// limited is the context of a write.
func (q *request) limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(q.r.Context(), q.server.patience())
}

func (q *request) query() url.Values { return q.r.URL.Query() }

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
