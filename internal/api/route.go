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

// route finds the resource of the request and checks that the resource supports the request. If another handler is
// responsible, route calls the handler and returns false.
func (q *request) route() bool {
	if !q.resource {
		q.serveNonResource()
		return false
	}
	var aggregated *resource.APIService
	if q.v, aggregated = q.server.live.Load().Route(q.group, q.version, q.plural); q.v == nil && aggregated == nil {
		var err error
		if q.v, aggregated, err = q.awaitCatalog(); err != nil {
			q.fail(err)
			return false
		}
	}
	if aggregated != nil {
		q.slot.Release() // the aggregated API server does the work
		q.proxy(aggregated)
		return false
	}
	if q.v == nil || q.invalid || q.hasSubpath && !q.acceptsSubpath() {
		q.serveNotFound()
		return false
	}
	if !q.scopeMatches() {
		q.failScope()
		return false
	}
	err := q.checkVerb()
	if q.v.Deprecated && (err == nil || q.v.Definition.Custom != nil) {
		q.Warn(q.v.DeprecationWarning)
	}
	if err != nil {
		q.fail(err)
		return false
	}
	if q.subresource != "" {
		if s := q.v.Subresource(q.subresource); s != nil && s.Connect != nil {
			q.connect(s.Connect)
			return false
		}
	}
	return true
}

// awaitCatalog finds the resource again after the catalog has caught up with the store.
func (q *request) awaitCatalog() (local *resource.Version, aggregated *resource.APIService, err error) {
	ctx, cancel := context.WithTimeout(q.r.Context(), maxWriteTimeout)
	defer cancel()
	catalog, err := q.server.engine.Catalog(ctx)
	if err == nil {
		local, aggregated = catalog.Route(q.group, q.version, q.plural)
	}
	return local, aggregated, err
}

// scopeMatches reports whether the path has the scope of the resource.
func (q *request) scopeMatches() bool {
	if !q.v.Definition.Namespaced {
		return q.namespace == "" && !q.allowsEmptyNamespace() || q.plural == "namespaces" && q.group == ""
	}
	return q.namespace != "" || q.allowsEmptyNamespace() ||
		q.name == "" && (q.verb == verbList || q.verb == verbWatch) || q.nameFromSelector()
}

// allowsEmptyNamespace reports whether the path has an empty namespace, as in /namespaces//pods, and the kind
// allows it. Built-in kinds do.
func (q *request) allowsEmptyNamespace() bool {
	return q.emptyNamespace && q.v.Definition.Custom == nil
}

// nameFromSelector reports whether a name in the attributes comes from a field selector instead of the path.
func (q *request) nameFromSelector() bool {
	return q.verb == verbList || q.verb == verbWatch && !q.watchPrefix
}

// checkVerb rejects verbs, subresources and names that the resource does not support.
func (q *request) checkVerb() error {
	verbs := q.v.Definition.Verbs
	if q.subresource != "" {
		known := false
		if verbs, known = subresourceVerbs(q.v, q.subresource); !known {
			q.skipMetrics = true
			if q.v.Definition.Custom == nil {
				return pageNotFound()
			}
			return apierrors.NewNotFound(q.v.GroupResource(), q.name)
		}
	}
	if q.subresource != "" && q.verb == verbList && slices.Contains(verbs, verbGet) {
		return nameRequired()
	}
	if !slices.Contains(verbs, q.verb) && !q.watchesComputed() ||
		q.r.Method == http.MethodHead && q.v.Definition.Custom == nil {
		switch s := q.v.Subresource(q.subresource); {
		case s == nil || s.Connect == nil:
			return q.unsupported()
		case q.watchPrefix:
			return pageNotFound()
		case !slices.Contains(s.Connect.Methods, q.r.Method):
			return q.unsupported()
		}
	}
	if err := q.checkName(); err != nil {
		return err
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
	if q.v.Definition.Namespaced && q.namespace == "" && q.allowsEmptyNamespace() && !q.nameFromSelector() {
		return apierrors.NewBadRequest("Namespace parameter required.")
	}
	return nil
}

// watchesComputed reports whether the request is a list of a computed kind with watch=true. Like upstream, the
// server checks the other options before it rejects this request.
func (q *request) watchesComputed() bool {
	return q.verb == verbWatch && q.v.Definition.Behavior.Compute != nil && !q.watchPrefix
}

// checkName rejects an update or a patch of a collection. For a built-in kind it also rejects a create at the path
// of one object. A custom object is created with the name in its metadata, whatever the path contains.
func (q *request) checkName() error {
	custom := q.v.Definition.Custom != nil
	switch {
	case q.subresource != "" && q.name == "":
		return nameRequired()
	case q.verb == verbCreate && q.name != "" && q.subresource == "" && !custom:
		return q.unsupported()
	case q.name != "" || q.verb != verbUpdate && q.verb != verbPatch:
		return nil
	case custom:
		return nameRequired()
	}
	return q.unsupported()
}

func nameRequired() error { return apierrors.NewBadRequest("name must be provided") }

func subresourceVerbs(v *resource.Version, name string) (verbs []string, known bool) {
	if name == "status" && v.Status || name == "scale" && v.Scale != nil {
		return []string{verbGet, verbPatch, verbUpdate}, true
	}
	if s := v.Subresource(name); s != nil {
		return s.Verbs, true
	}
	return nil, false
}

// unsupported returns the 405 for the verb. For a kind that is never stored it returns a 404 unless the path is
// the one that accepts POST.
func (q *request) unsupported() error {
	d := q.v.Definition
	computed := d.Behavior.Compute != nil && !q.watchPrefix // a computed kind has a path for each object
	if !d.Stored() && !computed && (q.name != "" || q.watchPrefix || d.Namespaced && q.namespace == "") {
		return pageNotFound()
	}
	if d.Custom == nil {
		return methodNotAllowed()
	}
	return apierrors.NewMethodNotSupported(q.v.GroupResource(), q.verb)
}

// failScope writes the error for a path with the wrong scope. For a collection of a namespaced built-in kind across
// all namespaces, the error is that the method is not supported.
func (q *request) failScope() {
	switch {
	case q.v.Definition.Custom != nil:
		q.serveNotFound()
	case q.v.Definition.Namespaced && q.name == "":
		q.fail(q.unsupported())
	default:
		q.fail(pageNotFound())
	}
}

// methodNotAllowed returns the 405 for paths that every API server has.
func methodNotAllowed() error {
	return apierrors.NewGenericServerResponse(
		http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "405: Method Not Allowed", 0, false)
}

// pageNotFound returns the 404 of an unknown path in a known group.
func pageNotFound() error {
	return apierrors.NewGenericServerResponse(
		http.StatusNotFound, "", schema.GroupResource{}, "", "404: Page Not Found", 0, false)
}

// serveNotFound writes kube-apiserver's response to a path without a handler. In built-in groups the response is a
// Status. Otherwise the response has a text media type, and clients build the same Status from it.
func (q *request) serveNotFound() {
	local, _ := q.server.live.Load().LocalGroup(q.group, "")
	if local && (q.group != "" || strings.HasPrefix(q.r.URL.Path, "/api/")) {
		q.fail(pageNotFound())
		return
	}
	// The media type prevents clients from decoding the Status. Clients add the requested path to the Status that
	// they build from a plain 404, and kubectl shows that message.
	h := q.w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	q.status = http.StatusNotFound
	q.w.WriteHeader(q.status)
	if body, err := encodeStatus(media{pretty: pretty(q.r)}, statusOf(pageNotFound())); err == nil {
		_, _ = q.w.Write(body) // an error means that the client has disconnected
	}
}
