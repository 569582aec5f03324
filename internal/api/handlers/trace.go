package handlers

import (
	"encoding/json"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

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
func (q call) wantsTrace() bool {
	return strings.Contains(q.R.URL.RawQuery, TraceParameter+"=") && q.Query().Get(TraceParameter) == "true"
}

// serveTraced runs a dry run and writes its trace.
func (q call) serveTraced() error {
	if q.Query().Get("dryRun") != metav1.DryRunAll {
		return apierrors.NewBadRequest(TraceParameter + "=true requires dryRun=All")
	}
	t := &Traced{}
	q.Trace, q.Capture = &t.Trace, t.recordResponse
	if err := q.serveWrite(); err != nil {
		q.Fail(err)
	}
	q.Trace, q.Capture = nil, nil
	body, err := json.Marshal(t)
	if err == nil {
		q.Write(http.StatusOK, runtime.ContentTypeJSON, body)
	}
	return err
}

// recordSent records the object in the request, if the request is traced.
func (q call) recordSent(data []byte) {
	if q.Trace != nil {
		q.Trace.Sent, _, _ = object.DecodeYAML(data) // an invalid body is rejected later
	}
}

// recordResponse records the response.
func (t *Traced) recordResponse(code int, body []byte) {
	if t.Code = code; json.Valid(body) {
		t.Answer = append(t.Answer, body...)
	}
}
