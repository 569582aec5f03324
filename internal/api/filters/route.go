package filters

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	pathvalidation "k8s.io/apimachinery/pkg/api/validation/path"

	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// Route finds the kind of the request, or the API server that serves it. It rejects a request that the kind does not
// support.
func (f *Filters) Route(q *request.Request) bool {
	if !q.Resource {
		q.Service = f.aggregatedService(q)
		return true
	}
	q.Kind, q.Service = f.Engine.Live.Load().Route(q.Group, q.Version, q.Plural)
	if q.Kind == nil && q.Service == nil {
		if err := f.awaitCatalog(q); err != nil {
			q.Fail(err)
			return false
		}
	}
	if q.Service != nil {
		return true
	}
	if q.Kind == nil || q.Invalid || q.HasSubpath && !acceptsSubpath(q) {
		q.Fail(q.NotFound(f.Engine.Live.Load()))
		return false
	}
	known := factsOf(q)
	err := routeError(q, known)
	if q.Kind.Deprecated && (err == nil || known&(sharedHandler|wrongScope) == sharedHandler) {
		q.Warn(q.Kind.DeprecationWarning)
	}
	if err == request.ErrNoHandler {
		err = q.NotFound(f.Engine.Live.Load())
	}
	if err != nil {
		q.Fail(err)
	}
	return err == nil
}

// awaitCatalog finds the kind again after the catalog has caught up with the store.
func (f *Filters) awaitCatalog(q *request.Request) error {
	ctx, cancel := context.WithTimeout(q.R.Context(), request.MaxWriteTimeout)
	defer cancel()
	catalog, err := f.Engine.Catalog(ctx)
	if err == nil {
		q.Kind, q.Service = catalog.Route(q.Group, q.Version, q.Plural)
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
	err   func(*request.Request) error
}{
	{sharedHandler | wrongScope, func(*request.Request) error { return request.ErrNoHandler }},
	{wrongScope | namespaced | collection, unsupported},
	{wrongScope, unknownPage},
	{ownHandlers | unknownSubresource, unknownPage},
	{unknownSubresource, objectNotFound},
	{subresource | lists | reads, nameRequired},
	{unserved, unsupported},
	{unwatched, unknownPage},
	{subresource | collection, nameRequired},
	{ownHandlers | creates | named, unsupported},
	{sharedHandler | modifies | collection, nameRequired},
	{modifies | collection, unsupported},
}

// routeError returns the error of the request's row in routes, or the error of an invalid name.
func routeError(q *request.Request, f facts) error {
	if f&unknownSubresource != 0 {
		q.SkipMetrics = true
	}
	for i := range routes {
		if routes[i].facts&^f == 0 {
			return routes[i].err(q)
		}
	}
	if q.Name != "" {
		if problems := pathvalidation.IsValidPathSegmentName(q.Name); len(problems) > 0 {
			return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s",
				q.Name, strings.Join(problems, ";")))
		}
	}
	if q.Namespace == "." || q.Namespace == ".." {
		return apierrors.NewBadRequest(fmt.Sprintf("Namespace parameter invalid: %q: may not be '%s'",
			q.Namespace, q.Namespace))
	}
	if f&(namespaced|ownHandlers) == namespaced|ownHandlers && q.EmptyNamespace && !nameFromSelector(q) {
		return apierrors.NewBadRequest("Namespace parameter required.")
	}
	return nil
}

// factsOf returns the facts of a request.
func factsOf(q *request.Request) facts {
	d := q.Kind.Definition
	perPath, of := d.Routing == resource.HandlerPerPath, q.Subresource != ""
	verbs := d.Verbs
	if of {
		verbs, q.ConnectTo = subresourceVerbs(q)
	}
	served := (slices.Contains(verbs, q.Verb) || q.WatchesComputed()) && (q.R.Method != http.MethodHead || !perPath)
	connected := q.ConnectTo != nil && !served
	if q.ConnectTo != nil {
		served = served || q.WatchPrefix || slices.Contains(q.ConnectTo.Methods, q.R.Method)
	} else if q.Verb == request.VerbWatch {
		served = served && q.R.Method == http.MethodGet
	}
	var out facts
	for _, f := range [...]struct {
		holds bool
		fact  facts
	}{
		{perPath, ownHandlers},
		{!perPath, sharedHandler},
		{!hasScope(q, perPath), wrongScope},
		{d.Namespaced, namespaced},
		{q.Name == "", collection},
		{q.Name != "" && !of, named},
		{of, subresource},
		{of && verbs == nil, unknownSubresource},
		{of && slices.Contains(verbs, request.VerbGet), reads},
		{q.Verb == request.VerbList, lists},
		{q.Verb == request.VerbCreate, creates},
		{q.Verb == request.VerbUpdate || q.Verb == request.VerbPatch, modifies},
		{!served, unserved},
		{connected && q.WatchPrefix, unwatched},
	} {
		if f.holds {
			out |= f.fact
		}
	}
	return out
}

// hasScope reports whether the path has the scope of the kind. A kind with a handler for each path also has paths
// with an empty namespace, as in /namespaces//pods.
func hasScope(q *request.Request, perPath bool) bool {
	empty := q.EmptyNamespace && perPath
	if !q.Kind.Definition.Namespaced {
		return q.Namespace == "" && !empty || q.Plural == "namespaces" && q.Group == ""
	}
	return q.Namespace != "" || empty || q.Name == "" && q.Verb == request.VerbWatch || nameFromSelector(q)
}

// nameFromSelector reports whether a name in the attributes comes from a field selector instead of the path.
func nameFromSelector(q *request.Request) bool {
	return q.Verb == request.VerbList || q.Verb == request.VerbWatch && !q.WatchPrefix
}

// readWriteVerbs are the verbs of /status and /scale.
var readWriteVerbs = []string{request.VerbGet, request.VerbPatch, request.VerbUpdate}

// subresourceVerbs returns the verbs of the subresource, or nil if the kind does not have it. connect is set if the
// subresource connects requests to another server.
func subresourceVerbs(q *request.Request) (verbs []string, connect *resource.Connect) {
	if q.Subresource == "status" && q.Kind.Status || q.Subresource == "scale" && q.Kind.Scale != nil {
		return readWriteVerbs, nil
	}
	if s := q.Kind.Subresource(q.Subresource); s != nil {
		return s.Verbs, s.Connect
	}
	return nil, nil
}

func unknownPage(*request.Request) error { return request.PageNotFound() }

func objectNotFound(q *request.Request) error {
	return apierrors.NewNotFound(q.Kind.GroupResource(), q.Name)
}

func nameRequired(*request.Request) error { return apierrors.NewBadRequest("name must be provided") }

// unsupported returns the 405 for the verb. For a kind that is never stored it returns a 404 unless the path is
// the one that accepts POST.
func unsupported(q *request.Request) error {
	d := q.Kind.Definition
	computed := d.Behavior.Compute != nil && !q.WatchPrefix // a computed kind has a path for each object
	if !d.Stored() && !computed && (q.Name != "" || q.WatchPrefix || d.Namespaced && q.Namespace == "") {
		return request.PageNotFound()
	}
	if d.Routing == resource.HandlerPerPath {
		return request.MethodNotAllowed()
	}
	return apierrors.NewMethodNotSupported(q.Kind.GroupResource(), q.Verb)
}

// acceptsSubpath reports whether the subresource passes the rest of the path on to its target.
func acceptsSubpath(q *request.Request) bool {
	s := q.Kind.Subresource(q.Subresource)
	return s != nil && s.Connect != nil && s.Connect.Subpath != ""
}

// aggregatedService returns the APIService of the group version in a discovery path. It returns nil if this
// server serves the path.
func (f *Filters) aggregatedService(q *request.Request) *catalog.APIService {
	parts := strings.Split(strings.TrimSuffix(q.R.URL.Path, "/"), "/")
	group := ""
	switch {
	case len(parts) == 4 && parts[1] == "apis":
		group = parts[2]
	case len(parts) != 3 || parts[1] != "api":
		return nil
	}
	_, aggregated := f.Engine.Live.Load().Route(group, parts[len(parts)-1], "")
	return aggregated
}
