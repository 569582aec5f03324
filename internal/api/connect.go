package api

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	slashes "path"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// connect proxies a request for a subresource to its target: a container, a node or a Pod.
func (q *request) connect(c *resource.Connect) error {
	defer q.startLongRunning()()
	defer q.server.metrics.countLongRunning(q).running.Dec()
	handler, err := q.connectHandler(c)
	if err == nil {
		handler.ServeHTTP(&responseRecorder{q.w, q}, q.r)
	}
	return err
}

// connectHandler returns the handler that proxies the request to its target.
func (q *request) connectHandler(c *resource.Connect) (http.Handler, error) {
	query := q.query()
	switch {
	case q.server.config.Connect == nil:
		return nil, pageNotFound(q)
	case !c.Reads && query.Has("dryRun"):
		return nil, apierrors.NewBadRequest("dryRun is not supported")
	}
	if c.Subpath != "" {
		if query = maps.Clone(query); query == nil {
			query = url.Values{}
		}
		query[c.Subpath] = []string{q.subpath()}
	}
	options, err := q.connectOptions(c, query)
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

// connectOptions decodes the options in the query and runs admission on them.
func (q *request) connectOptions(c *resource.Connect, query url.Values) (object.Tree, error) {
	options, err := c.Decode(query)
	if err != nil || c.Reads {
		return options, err
	}
	caller := verb.Caller{User: q.attributes.User, Warn: q.Warn, Annotate: q.annotate}
	options, err = q.server.engine.Connect(q.r.Context(), q.target(), options, caller)
	if err != nil || !q.opensStream(c) || q.verb == verbCreate {
		return options, err
	}
	return options, q.requireCreate()
}

// opensStream reports whether the request opens a stream to a container. This depends on the subresource, or on the
// kubelet path that follows the subresource.
func (q *request) opensStream(c *resource.Connect) bool {
	if c.Upgrades || len(c.Streams) == 0 {
		return c.Upgrades
	}
	first, _, _ := strings.Cut(strings.TrimLeft(slashes.Clean("/"+q.subpath()), "/"), "/")
	return slices.Contains(c.Streams, first)
}

// requireCreate returns an error if the caller may not create the subresource. To run a command, read access is not
// enough (https://issue.k8s.io/133515).
func (q *request) requireCreate() error {
	_, decision, reason, err := q.authorizeCreate()
	if err == nil && decision != authorizer.DecisionAllow {
		err = apierrors.NewForbidden(q.v.GroupResource(), q.name, errors.New(reason))
	}
	return err
}

// acceptsSubpath reports whether the subresource passes the rest of the path on to its target.
func (q *request) acceptsSubpath() bool {
	s := q.v.Subresource(q.subresource)
	return s != nil && s.Connect != nil && s.Connect.Subpath != ""
}

// subpath returns the part of the path after the subresource. It starts with a slash, or is empty.
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
