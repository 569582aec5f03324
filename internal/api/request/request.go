// Package request holds the state of one request, from its first byte to its last: the parsed path, the caller, the
// negotiated form, the warnings, the audit event, and the memory and slot that it holds. It writes the response. The
// packages filters, handlers, health and metrics work on this state, and it does not depend on them.
package request

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/access"
	"github.com/trellis-k8s/trellis/internal/access/flowcontrol"
	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/compute"
	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/engine/trace"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
)

// Request is the state of one request.
type Request struct {
	W http.ResponseWriter
	R *http.Request
	Path
	*Limits
	*encoding.Negotiator
	parsedQuery url.Values          // result of query; nil before its first call
	Attributes  access.Attributes   // input of the authorizer
	Kind        *resource.Version   // kind in the path; nil until it is known
	Service     *catalog.APIService // API server that serves the path; nil if this server does
	ConnectTo   *resource.Connect   // set if the subresource connects requests to another server
	Media       encoding.Media      // negotiated form of the response
	AuditState  *AuditState
	Trace       *trace.Trace                // set for a traced dry run; otherwise nil
	Capture     func(code int, body []byte) // receives the response of a traced dry run
	Seat        flowcontrol.Seat            // seat of API Priority and Fairness, if the request holds one
	warnings

	Began           time.Time
	Cancel          context.CancelFunc // cancels the deadline that the client requested; nil if there is none
	Status          int                // of the response; 0 before it is written
	Size            int                // bytes of the response body written
	Slot            *compute.Slot      // nil if the request is inexpensive
	Weight          int64              // bytes of the memory budget that the request holds
	inWebhookShare  bool               // the weight is also acquired from limits.webhooks
	WeightEstimated bool               // only bounds of the weight of the body are known
	DryRun          bool
	Apply           bool
	SkipMetrics     bool // the path has an unknown subresource, so the request is not in the metrics
}

// InProcess is the context key that marks a request from a client in this process.
type InProcess struct{}

// IsInProcess reports whether the client is in this process.
func (q *Request) IsInProcess() bool { return q.R.Context().Value(InProcess{}) != nil }

// TimeoutError returns the 504 for a request whose deadline has expired.
func TimeoutError() error {
	return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
}

// WriteContext returns the context of a write, with its timeout.
func (q *Request) WriteContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(q.R.Context(), q.WriteTimeout())
}

// Query returns the query of the URL. It is parsed once. The caller must not modify it.
func (q *Request) Query() url.Values {
	if q.parsedQuery == nil && q.R.URL.RawQuery != "" {
		q.parsedQuery = q.R.URL.Query()
	}
	return q.parsedQuery
}

// InternalError logs err and writes a 500, after an internal failure that is not specific to the verb.
func (q *Request) InternalError(message string, err error) {
	slog.Error(message, "method", q.R.Method, "path", q.R.URL.Path, "error", err)
	q.Status = http.StatusInternalServerError
	http.Error(q.W, access.Escape(fmt.Sprintf("Internal Server Error: %q: %v", q.R.RequestURI, err)), q.Status)
}

// IsLongRunning reports whether upstream regards the request as long-running. Long-running requests hold no seat,
// but a watch holds one until its initial events are sent. Long-running requests have an audit event of the stage
// ResponseStarted.
func (q *Request) IsLongRunning() bool {
	if q.Resource {
		return q.Verb == VerbWatch || q.Verb == "proxy" || LongRunningSubresources[q.Subresource]
	}
	return strings.HasPrefix(q.R.URL.Path, "/debug/pprof/")
}

// LongRunningSubresources are the subresources whose requests kube-apiserver regards as long-running.
var LongRunningSubresources = map[string]bool{
	"attach": true, "exec": true, "log": true, "portforward": true, "proxy": true,
}

// Target returns the target of the request for the engine.
func (q *Request) Target() verb.Target {
	t := verb.Target{Version: q.Kind, Name: q.Name, Subresource: q.Subresource}
	if q.Kind.Definition.Namespaced {
		t.Namespace = q.Namespace
	}
	// A conversion webhook that is down must not block controllers that handle namespaces, garbage and CRDs.
	// Their requests for metadata and their deletions skip the conversion.
	view := q.Media.View
	if view == encoding.ViewPartial || view == encoding.ViewPartialList || q.R.Method == http.MethodDelete {
		t.AsStored = conversion.UsesWebhook(q.Kind.Definition) && q.IsInProcess()
	}
	return t
}

// Forbid writes a 403.
func (q *Request) Forbid(reason string) {
	q.W.Header().Set("X-Content-Type-Options", "nosniff")
	q.Fail(access.Forbidden(&q.Attributes, reason))
}

// ContentType returns the Content-Type header of the request without parameters.
func (q *Request) ContentType() string {
	header := q.R.Header.Get("Content-Type")
	if i := strings.IndexByte(header, ';'); i > 0 {
		return header[:i]
	}
	return header
}

// WatchesComputed reports whether the request is a list of a computed kind with watch=true. Like upstream, the
// server checks the other options before it rejects this request.
func (q *Request) WatchesComputed() bool {
	return q.Verb == VerbWatch && q.Kind.Definition.Behavior.Compute != nil && !q.WatchPrefix
}

// SetBodyDeadline limits the time in which the body of an HTTP/1 request must arrive. net/http reads the rest of
// such a body before it sends the response and before it reads the next request. Without a deadline that read
// could block forever. net/http clears the deadline once the body has been read to its end.
func (q *Request) SetBodyDeadline() {
	if q.R.ProtoMajor == 1 {
		q.SetReadDeadline(time.Now().Add(q.WriteTimeout()))
	}
}

// SetReadDeadline sets the deadline for reading the body. It has no effect on requests from the loopback, whose
// clients cannot stall.
func (q *Request) SetReadDeadline(at time.Time) {
	_ = http.NewResponseController(q.W).SetReadDeadline(at)
}

// DecodeOptions decodes the options of a verb from the query, by the rules of apimachinery.
func DecodeOptions(query url.Values, into runtime.Object) error {
	if len(query) == 0 {
		return nil
	}
	if err := internalscheme.ParameterCodec.DecodeParameters(query, metav1.SchemeGroupVersion, into); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}
