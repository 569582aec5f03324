package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// route finds the kind of the request, or the API server that serves it. It rejects a request that the kind does not
// support.
func (q *request) route() bool {
	if !q.resource {
		return true
	}
	q.v, q.service = q.server.live.Load().Route(q.group, q.version, q.plural)
	if q.v == nil && q.service == nil {
		if err := q.awaitCatalog(); err != nil {
			q.fail(err)
			return false
		}
	}
	if q.service != nil {
		return true
	}
	if q.v == nil || q.invalid || q.hasSubpath && !q.acceptsSubpath() {
		q.fail(q.notFound())
		return false
	}
	f := q.facts()
	err := q.routeError(f)
	if q.v.Deprecated && (err == nil || f&(sharedHandler|wrongScope) == sharedHandler) {
		q.Warn(q.v.DeprecationWarning)
	}
	if err != nil {
		q.fail(err)
	}
	return err == nil
}

// awaitCatalog finds the kind again after the catalog has caught up with the store.
func (q *request) awaitCatalog() error {
	ctx, cancel := context.WithTimeout(q.r.Context(), maxWriteTimeout)
	defer cancel()
	catalog, err := q.server.engine.Catalog(ctx)
	if err == nil {
		q.v, q.service = catalog.Route(q.group, q.version, q.plural)
	}
	return err
}

// facts are the properties of a request and its kind that select a row of the table routes.
type facts uint16

const (
	ownHandlers   facts = 1 << iota // resource.Definition.Routing is resource.HandlerPerPath
	sharedHandler                   // resource.Definition.Routing is resource.HandlerPerKind
	wrongScope                      // the path does not have the scope of the kind
	namespaced                      // the kind is namespaced
	collection                      // the path has no name
	named                           // the path has a name, but no subresource
	subresource                     // the path has a subresource
	unknownSubresource
	reads     // the subresource has the verb get
	lists     // the verb is list
	creates   // the verb is create
	modifies  // the verb is update or patch
	unserved  // the kind or the subresource does not have the verb
	unwatched // the subresource connects requests, and the path has the prefix /watch/
)

// routes is the table of the requests that a kind does not support. The first row whose facts all apply to a request
// determines the error. A request without a row is served. kube-apiserver registers a handler for each path and each
// method of its own kinds. One handler serves all paths of custom kinds, so its responses differ.
var routes = [...]struct {
	facts facts
	err   func(*request) error
}{
	{sharedHandler | wrongScope, (*request).notFound},
	{wrongScope | namespaced | collection, (*request).unsupported},
	{wrongScope, pageNotFound},
	{ownHandlers | unknownSubresource, pageNotFound},
	{unknownSubresource, func(q *request) error { return apierrors.NewNotFound(q.v.GroupResource(), q.name) }},
	{subresource | lists | reads, nameRequired},
	{unserved, (*request).unsupported},
	{unwatched, pageNotFound},
	{subresource | collection, nameRequired},
	{ownHandlers | creates | named, (*request).unsupported},
	{sharedHandler | modifies | collection, nameRequired},
	{modifies | collection, (*request).unsupported},
}

// routeError returns the error of the request's row in routes, or the error of an invalid name.
func (q *request) routeError(f facts) error {
	if f&unknownSubresource != 0 {
		q.skipMetrics = true
	}
	for i := range routes {
		if routes[i].facts&^f == 0 {
			return routes[i].err(q)
		}
	}
	if q.name != "" {
		if problems := pathvalidation.IsValidPathSegmentName(q.name); len(problems) > 0 {
			return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s",
				q.name, strings.Join(problems, ";")))
		}
	}
	if q.namespace == "." || q.namespace == ".." {
		return apierrors.NewBadRequest(fmt.Sprintf("Namespace parameter invalid: %q: may not be '%s'",
			q.namespace, q.namespace))
	}
	if f&(namespaced|ownHandlers) == namespaced|ownHandlers && q.emptyNamespace && !q.nameFromSelector() {
		return apierrors.NewBadRequest("Namespace parameter required.")
	}
	return nil
}

// facts returns the facts of the request.
func (q *request) facts() facts {
	d := q.v.Definition
	perPath, of := d.Routing == resource.HandlerPerPath, q.subresource != ""
	verbs := d.Verbs
	if of {
		verbs, q.connectTo = q.subresourceVerbs()
	}
	served := (slices.Contains(verbs, q.verb) || q.watchesComputed()) && (q.r.Method != http.MethodHead || !perPath)
	connected := q.connectTo != nil && !served
	if q.connectTo != nil {
		served = served || q.watchPrefix || slices.Contains(q.connectTo.Methods, q.r.Method)
	} else if q.verb == verbWatch {
		served = served && q.r.Method == http.MethodGet
	}
	var out facts
	for _, f := range [...]struct {
		holds bool
		fact  facts
	}{
		{perPath, ownHandlers},
		{!perPath, sharedHandler},
		{!q.hasScope(perPath), wrongScope},
		{d.Namespaced, namespaced},
		{q.name == "", collection},
		{q.name != "" && !of, named},
		{of, subresource},
		{of && verbs == nil, unknownSubresource},
		{of && slices.Contains(verbs, verbGet), reads},
		{q.verb == verbList, lists},
		{q.verb == verbCreate, creates},
		{q.verb == verbUpdate || q.verb == verbPatch, modifies},
		{!served, unserved},
		{connected && q.watchPrefix, unwatched},
	} {
		if f.holds {
			out |= f.fact
		}
	}
	return out
}

// hasScope reports whether the path has the scope of the kind. A kind with a handler for each path also has paths
// with an empty namespace, as in /namespaces//pods.
func (q *request) hasScope(perPath bool) bool {
	empty := q.emptyNamespace && perPath
	if !q.v.Definition.Namespaced {
		return q.namespace == "" && !empty || q.plural == "namespaces" && q.group == ""
	}
	return q.namespace != "" || empty || q.name == "" && q.verb == verbWatch || q.nameFromSelector()
}

// nameFromSelector reports whether a name in the attributes comes from a field selector instead of the path.
func (q *request) nameFromSelector() bool {
	return q.verb == verbList || q.verb == verbWatch && !q.watchPrefix
}

// watchesComputed reports whether the request is a list of a computed kind with watch=true. Like upstream, the
// server checks the other options before it rejects this request.
func (q *request) watchesComputed() bool {
	return q.verb == verbWatch && q.v.Definition.Behavior.Compute != nil && !q.watchPrefix
}

// readWriteVerbs are the verbs of /status and /scale.
var readWriteVerbs = []string{verbGet, verbPatch, verbUpdate}

// subresourceVerbs returns the verbs of the subresource, or nil if the kind does not have it. connect is set if the
// subresource connects requests to another server.
func (q *request) subresourceVerbs() (verbs []string, connect *resource.Connect) {
	if q.subresource == "status" && q.v.Status || q.subresource == "scale" && q.v.Scale != nil {
		return readWriteVerbs, nil
	}
	if s := q.v.Subresource(q.subresource); s != nil {
		return s.Verbs, s.Connect
	}
	return nil, nil
}

func nameRequired(*request) error { return apierrors.NewBadRequest("name must be provided") }

// unsupported returns the 405 for the verb. For a kind that is never stored it returns a 404 unless the path is
// the one that accepts POST.
func (q *request) unsupported() error {
	d := q.v.Definition
	computed := d.Behavior.Compute != nil && !q.watchPrefix // a computed kind has a path for each object
	if !d.Stored() && !computed && (q.name != "" || q.watchPrefix || d.Namespaced && q.namespace == "") {
		return pageNotFound(q)
	}
	if d.Routing == resource.HandlerPerPath {
		return methodNotAllowed()
	}
	return apierrors.NewMethodNotSupported(q.v.GroupResource(), q.verb)
}

// methodNotAllowed returns the 405 for paths that every API server has.
func methodNotAllowed() error {
	return apierrors.NewGenericServerResponse(
		http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "405: Method Not Allowed", 0, false)
}

// pageNotFound returns the 404 of an unknown path in a known group.
func pageNotFound(*request) error {
	return apierrors.NewGenericServerResponse(
		http.StatusNotFound, "", schema.GroupResource{}, "", "404: Page Not Found", 0, false)
}

// errNoHandler is the error of a path without a handler. The response has a text media type, and clients build the
// same Status from it.
var errNoHandler = pageNotFound(nil)

// notFound returns kube-apiserver's error for a path without a handler. In built-in groups the response is a Status.
func (q *request) notFound() error {
	local, _ := q.server.live.Load().LocalGroup(q.group, "")
	if local && (q.group != "" || strings.HasPrefix(q.r.URL.Path, "/api/")) {
		return pageNotFound(q)
	}
	return errNoHandler
}

// writeNoHandler writes errNoHandler. The media type prevents clients from decoding the Status. Clients add the
// requested path to the Status that they build from a plain 404, and kubectl shows that message.
func (q *request) writeNoHandler() {
	h := q.w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	q.status = http.StatusNotFound
	q.w.WriteHeader(q.status)
	if body, err := encodeStatus(media{pretty: q.pretty()}, statusOf(errNoHandler)); err == nil {
		_, _ = q.w.Write(body) // an error means that the client has disconnected
	}
}
