package api

import (
	"encoding/json"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/trace"
	"github.com/trellis-k8s/trellis/internal/object"
)

// TraceParameter is the query parameter with which a dry run returns a Traced instead of its usual response.
const TraceParameter = "trace"

// Traced is the result of a traced dry run. It holds the effect of each step of the write, and the usual response.
type Traced struct {
	trace.Trace
	Code   int             `json:"code"`
	Answer json.RawMessage `json:"answer,omitempty"` // set only if the response is JSON
}

// wantsTrace reports whether the query requests a trace.
func (q *request) wantsTrace() bool {
	return strings.Contains(q.r.URL.RawQuery, TraceParameter+"=") && q.query().Get(TraceParameter) == "true"
}

// serveTraced runs a dry run and writes its trace.
func (q *request) serveTraced() error {
	if q.query().Get("dryRun") != metav1.DryRunAll {
		return apierrors.NewBadRequest(TraceParameter + "=true requires dryRun=All")
	}
	t := &Traced{}
	q.trace = t
	if err := q.dispatchWrite(); err != nil {
		q.fail(err)
	}
	q.trace = nil
	body, err := json.Marshal(t)
	if err == nil {
		q.write(http.StatusOK, mediaJSON, body)
	}
	return err
}

// recordSent records the object in the request.
func (t *Traced) recordSent(data []byte) {
	if t != nil {
		t.Sent, _, _ = object.DecodeYAML(data) // an invalid body is rejected later
	}
}

// recordResponse records the response.
func (t *Traced) recordResponse(code int, body []byte) {
	if t.Code = code; json.Valid(body) {
		t.Answer = append(t.Answer, body...)
	}
}
