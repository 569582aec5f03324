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

// route finds what serves the request: a kind, which has to have what is asked of it, or one of the other paths.
func (q *request) route() bool {
	if !q.resource {
		q.serveOther()
		return false
	}
	var theirs *resource.APIService
	if q.v, theirs = q.server.live.Load().Route(q.group, q.version, q.plural); q.v == nil && theirs == nil {
		var err error
		if q.v, theirs, err = q.await(); err != nil {
			q.fail(err)
			return false
		}
	}
	if theirs != nil {
		q.slot.Release() // the other server computes
		q.proxy(theirs)
		return false
	}
	if q.v == nil || q.deep || q.further && !q.leadsFurther() {
		q.notServed()
		return false
	}
	if !q.fits() {
		q.misplaced()
		return false
	}
	err := q.allowed()
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

// await finds a kind that the catalog did not know a moment ago.
func (q *request) await() (ours *resource.Version, theirs *resource.APIService, err error) {
	ctx, cancel := context.WithTimeout(q.r.Context(), writePatience)
	defer cancel()
	catalog, err := q.server.engine.Catalog(ctx)
	if err == nil {
		ours, theirs = catalog.Route(q.group, q.version, q.plural)
	}
	return ours, theirs, err
}

// fits says whether kind and path agree on the scope.
func (q *request) fits() bool {
	if !q.v.Definition.Namespaced {
		return q.namespace == "" && !q.placedNowhere() || q.plural == "namespaces" && q.group == ""
	}
	return q.namespace != "" || q.placedNowhere() || q.name == "" && (q.verb == verbList || q.verb == verbWatch) || q.selectsName()
}

// placedNowhere is true of a path that leaves out the name of a namespace, which one of a built-in kind may.
func (q *request) placedNowhere() bool { return q.unplaced && q.v.Definition.Custom == nil }

// selectsName is true where the name comes from a field selector, not from the path.
func (q *request) selectsName() bool {
	return q.verb == verbList || q.verb == verbWatch && !q.watchPrefix
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
	if q.subresource != "" && q.verb == verbList && slices.Contains(verbs, verbGet) {
		return nameless()
	}
	if !slices.Contains(verbs, q.verb) && !q.watchesComputed() || q.r.Method == http.MethodHead && q.v.Definition.Custom == nil {
		switch s := q.v.Subresource(q.subresource); {
		case s == nil || s.Connect == nil:
			return q.unsupported()
		case q.watchPrefix:
			return missing()
		case !slices.Contains(s.Connect.Methods, q.r.Method):
			return q.unsupported()
		}
	}
	if err := q.wellAimed(); err != nil {
		return err
	}
	if q.name != "" {
		if problems := pathvalidation.IsValidPathSegmentName(q.name); len(problems) > 0 {
			return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", q.name, strings.Join(problems, ";")))
		}
	}
	if q.namespace == "." || q.namespace == ".." {
		return apierrors.NewBadRequest(fmt.Sprintf("Namespace parameter invalid: %q: may not be '%s'", q.namespace, q.namespace))
	}
	if q.v.Definition.Namespaced && q.namespace == "" && q.placedNowhere() && !q.selectsName() {
		return apierrors.NewBadRequest("Namespace parameter required.")
	}
	return nil
}

// watchesComputed says that a list of a computed kind is to be a watch, which the list refuses, as upstream.
func (q *request) watchesComputed() bool {
	return q.verb == verbWatch && q.v.Definition.Behavior.Compute != nil && !q.watchPrefix
}

// wellAimed refuses a verb for one object on a collection, and for a built-in kind the other way round. A custom object is
// created by the name in it, whatever the path says.
func (q *request) wellAimed() error {
	custom := q.v.Definition.Custom != nil
	switch {
	case q.subresource != "" && q.name == "":
		return nameless()
	case q.verb == verbCreate && q.name != "" && q.subresource == "" && !custom:
		return q.unsupported()
	case q.name != "" || q.verb != verbUpdate && q.verb != verbPatch:
		return nil
	case custom:
		return nameless()
	}
	return q.unsupported()
}

func nameless() error { return apierrors.NewBadRequest("name must be provided") }

func subresourceVerbs(v *resource.Version, name string) (verbs []string, known bool) {
	if name == "status" && v.Status || name == "scale" && v.Scale != nil {
		return []string{verbGet, verbPatch, verbUpdate}, true
	}
	if s := v.Subresource(name); s != nil {
		return s.Verbs, true
	}
	return nil, false
}

// unsupported is the 405. What is only posted has one path, and others lead nowhere.
func (q *request) unsupported() error {
	d := q.v.Definition
	computed := d.Behavior.Compute != nil && !q.watchPrefix // which has a path for each object
	if !d.Stored() && !computed && (q.name != "" || q.watchPrefix || d.Namespaced && q.namespace == "") {
		return missing()
	}
	if d.Custom == nil {
		return notAllowed()
	}
	return apierrors.NewMethodNotSupported(q.v.GroupResource(), q.verb)
}

// misplaced answers a path of the wrong scope: to a built-in kind a method may be unknown across namespaces.
func (q *request) misplaced() {
	switch {
	case q.v.Definition.Custom != nil:
		q.notServed()
	case q.v.Definition.Namespaced && q.name == "":
		q.fail(q.unsupported())
	default:
		q.fail(missing())
	}
}

// notAllowed is the 405 of upstream's own paths.
func notAllowed() error {
	return apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "405: Method Not Allowed", 0, false)
}

// missing is the 404 of a path below a known group that leads nowhere.
func missing() error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "404: Page Not Found", 0, false)
}

// notServed is what kube-apiserver says to a path that no handler has: a Status below
// its own groups, a line of text elsewhere, from which clients make the same Status.
func (q *request) notServed() {
	if native, _ := q.server.live.Load().LocalGroup(q.group, ""); native && (q.group != "" || strings.HasPrefix(q.r.URL.Path, "/api/")) {
		q.fail(missing())
		return
	}
	// The media type keeps clients from taking the Status as it is: to the one they make of a
	// plain 404 they add what they asked for, and kubectl's users read that.
	h := q.w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	q.status = http.StatusNotFound
	q.w.WriteHeader(q.status)
	if body, err := encodeStatus(media{pretty: pretty(q.r)}, statusOf(missing())); err == nil {
		_, _ = q.w.Write(body) // the client has gone; there is nobody to tell
	}
}
