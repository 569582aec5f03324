package api

import (
	"errors"
	"net/http"
	"net/url"
	slashes "path"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// connect has a request to a subresource answered by whom that leads to: a container, a node, a Pod.
func (q *request) connect(c *resource.Connect) {
	defer q.unbounded()()
	defer q.server.metrics.lasting(q).running.Dec()
	to, err := q.leadsTo(c)
	if err != nil {
		q.fail(err)
		return
	}
	to.ServeHTTP(&observed{q.w, q}, q.r)
}

// leadsTo finds out who that is.
func (q *request) leadsTo(c *resource.Connect) (http.Handler, error) {
	query := q.query()
	switch {
	case q.server.config.Connect == nil:
		return nil, missing()
	case c.Reads:
		if err := q.negotiate(); err != nil {
			return nil, err
		}
	case query.Has("dryRun"):
		return nil, apierrors.NewBadRequest("dryRun is not supported")
	}
	if c.Subpath != "" {
		query[c.Subpath] = []string{q.subpath()}
	}
	options, err := q.permitted(c, query)
	if err != nil {
		return nil, err
	}
	internal, err := c.Internal(options)
	if err != nil {
		return nil, err
	}
	fail := func(_ http.ResponseWriter, _ *http.Request, err error) { q.fail(err) }
	return q.server.config.Connect(q.r.Context(), q.namespace, q.name, internal, fail)
}

// permitted are the options of a query, as admission leaves them.
func (q *request) permitted(c *resource.Connect, query url.Values) (object.Tree, error) {
	options, err := c.Decode(query)
	if err != nil || c.Reads {
		return options, err
	}
	caller := engine.Caller{User: q.attributes.User, Warn: q.Warn, Annotate: q.annotate}
	if options, err = q.server.engine.Connect(q.r.Context(), q.target(), options, caller); err != nil || !q.streams(c) || q.verb == verbCreate {
		return options, err
	}
	return options, q.alsoCreates()
}

// streams reports whether the request reaches into a container: by the subresource, or by a kubelet's path behind it.
func (q *request) streams(c *resource.Connect) bool {
	if c.Upgrades || len(c.Streams) == 0 {
		return c.Upgrades
	}
	first, _, _ := strings.Cut(strings.TrimLeft(slashes.Clean("/"+q.subpath()), "/"), "/")
	return slices.Contains(c.Streams, first)
}

// alsoCreates refuses who may get, and not create, what becomes another protocol's connection: to run a command is no way of reading
// (https://issue.k8s.io/133515).
func (q *request) alsoCreates() error {
	a := q.attributes
	a.Verb = verbCreate
	decision, reason, err := q.server.config.Authorizer.Authorize(q.r.Context(), &a)
	if err == nil && decision != authorizer.DecisionAllow {
		err = apierrors.NewForbidden(q.v.GroupResource(), q.name, errors.New(reason))
	}
	return err
}

// leadsFurther says that what is behind the subresource in the path is for whom it leads to.
func (q *request) leadsFurther() bool {
	s := q.v.Subresource(q.subresource)
	return s != nil && s.Connect != nil && s.Connect.Subpath != ""
}

// subpath is what is behind the subresource in the path, from the slash on.
func (q *request) subpath() string {
	before := 5 // api, version, resource, name, subresource
	if q.namespace != "" {
		before += 2
	}
	parts := strings.SplitN(strings.TrimPrefix(q.r.URL.Path, "/"), "/", before+1)
	if len(parts) <= before {
		return ""
	}
	rest := strings.TrimRight(parts[before], "/")
	if rest != "" && rest[0] != '/' {
		rest = "/" + rest
	}
	if strings.HasSuffix(q.r.URL.Path, "/") {
		rest += "/"
	}
	return rest
}
