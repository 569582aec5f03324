package handlers

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

	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// connect proxies a request for a subresource to its target: a container, a node or a Pod.
func (q call) connect(c *resource.Connect) error {
	defer q.startLongRunning()()
	defer q.Metrics.CountLongRunning(q.Request).Running.Dec()
	handler, err := q.connectHandler(c)
	if err == nil {
		handler.ServeHTTP(q.Recorder(nil), q.R)
	}
	return err
}

// connectHandler returns the handler that proxies the request to its target.
func (q call) connectHandler(c *resource.Connect) (http.Handler, error) {
	query := q.Query()
	switch {
	case q.Connector == nil:
		return nil, request.PageNotFound()
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
	fail := func(_ http.ResponseWriter, _ *http.Request, err error) { q.Fail(err) }
	return q.Connector(q.R.Context(), q.Namespace, q.Name, internal, fail)
}

// connectOptions decodes the options in the query and runs admission on them.
func (q call) connectOptions(c *resource.Connect, query url.Values) (object.Tree, error) {
	options, err := c.Decode(query)
	if err != nil || c.Reads {
		return options, err
	}
	caller := verb.Caller{User: q.Attributes.User, Warn: q.Warn, Annotate: q.Annotate}
	options, err = q.Engine.Connect(q.R.Context(), q.Target(), options, caller)
	if err != nil || !q.opensStream(c) || q.Verb == request.VerbCreate {
		return options, err
	}
	return options, q.requireCreate()
}

// opensStream reports whether the request opens a stream to a container. This depends on the subresource, or on the
// kubelet path that follows the subresource.
func (q call) opensStream(c *resource.Connect) bool {
	if c.Upgrades || len(c.Streams) == 0 {
		return c.Upgrades
	}
	first, _, _ := strings.Cut(strings.TrimLeft(slashes.Clean("/"+q.subpath()), "/"), "/")
	return slices.Contains(c.Streams, first)
}

// requireCreate returns an error if the caller may not create the subresource. To run a command, read access is not
// enough (https://issue.k8s.io/133515).
func (q call) requireCreate() error {
	_, decision, reason, err := q.authorizeCreate()
	if err == nil && decision != authorizer.DecisionAllow {
		err = apierrors.NewForbidden(q.Kind.GroupResource(), q.Name, errors.New(reason))
	}
	return err
}

// subpath returns the part of the path after the subresource. It starts with a slash, or is empty.
func (q call) subpath() string {
	before := 5 // api, version, resource, name, subresource
	if q.Namespace != "" {
		before += 2
	}
	parts := strings.SplitN(strings.TrimPrefix(q.R.URL.Path, "/"), "/", before+1)
	if len(parts) <= before {
		return ""
	}
	rest := strings.TrimRight(parts[before], "/")
	if rest != "" && rest[0] != '/' {
		rest = "/" + rest
	}
	if strings.HasSuffix(q.R.URL.Path, "/") {
		rest += "/"
	}
	return rest
}
