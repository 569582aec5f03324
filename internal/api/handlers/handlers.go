// Package handlers serves the verbs of kinds: it reads the options and the body of a request, calls the engine, and
// writes the result or the stream of a watch. It also proxies requests to aggregated API servers, nodes and Pods.
package handlers

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/aggregation"
	"github.com/trellis-k8s/trellis/internal/api/metrics"
	"github.com/trellis-k8s/trellis/internal/api/request"
	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
)

// Handlers serve the verbs of kinds, and requests that other servers answer.
type Handlers struct {
	Engine     *engine.Engine
	Authorizer access.Authorizer
	Fairness   *flowcontrol.Controller // API Priority and Fairness; nil admits every request
	Aggregator *aggregation.Aggregator // nil disables aggregation
	Connector  Connector
	Metrics    *metrics.Metrics
	Serving    context.Context // canceled when the server shuts down
}

// Connector returns the handler that proxies a request to a node, a Pod or a container. name is the object's name in
// the path and can include a scheme and a port. options are the query options as an internal type. The handler calls
// fail to write an error. A nil connector means that the subresources that need it return 404.
type Connector func(ctx context.Context, namespace, name string, options runtime.Object,
	fail func(http.ResponseWriter, *http.Request, error)) (http.Handler, error)

// call is a request together with the handlers that serve it.
type call struct {
	*Handlers
	*request.Request
}

// Serve serves a request whose path, verb and media types are valid.
func (h *Handlers) Serve(r *request.Request) error {
	q := call{h, r}
	switch {
	case q.Service != nil:
		q.proxy(q.Service)
		return nil
	case q.ConnectTo != nil:
		return q.connect(q.ConnectTo)
	}
	if q.R.ContentLength != 0 {
		growStack(0)
	}
	switch q.Verb {
	case request.VerbGet:
		return q.get()
	case request.VerbList:
		return q.list()
	case request.VerbWatch:
		return q.watch()
	}
	q.Metrics.Mutating.Add(1)
	defer q.Metrics.Mutating.Add(-1)
	if q.wantsTrace() {
		return q.serveTraced()
	}
	return q.serveWrite()
}

// serveWrite serves a verb that modifies objects.
func (q call) serveWrite() error {
	switch q.Verb {
	case request.VerbCreate:
		return q.create()
	case request.VerbUpdate:
		return q.update()
	case request.VerbPatch:
		return q.patch()
	case request.VerbDelete:
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

// caller returns the caller of a write for the engine. options are the options of the verb.
func (q call) caller(options runtime.Object, manager, validation string, dryRun []string) verb.Caller {
	if validation == "" {
		validation = metav1.FieldValidationWarn
	}
	q.DryRun = len(dryRun) > 0
	c := verb.Caller{
		User:         q.Attributes.User,
		FieldManager: fieldManager(manager, q.R.UserAgent()),
		Validation:   validation,
		DryRun:       q.DryRun,
		Warn:         q.Warn,
		Options:      options,
		Annotate:     q.Annotate,
		Slot:         q.Slot,
	}
	if q.AuditState != nil {
		c.OnDecoded = q.AuditRequestObject
	}
	if q.Verb != request.VerbCreate {
		c.MayCreate = q.mayCreate
	}
	if q.Trace != nil {
		c.Trace = q.Trace
		c.DryRun, q.DryRun = true, true // even if the options in the body do not request a dry run
	}
	return q.withMemoryCheck(c)
}

// mayCreate returns an error if the caller has no right to create the object. An update or an apply needs this
// right if the object does not exist.
func (q call) mayCreate() error {
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
func (q call) authorizeCreate() (a *access.Attributes, _ authorizer.Decision, reason string, err error) {
	create := q.Attributes
	create.Verb = request.VerbCreate
	decision, reason, err := q.Authorizer.Authorize(q.R.Context(), &create)
	return &create, decision, reason, err
}
