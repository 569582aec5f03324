package api

import (
	"encoding/json"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine"
	"github.com/trellis-k8s/trellis/internal/object"
)

// TraceParameter of a dry run has it answered with a Traced.
const TraceParameter = "trace"

// Traced is what each step of a write has done, or would have, and what its answer would be.
type Traced struct {
	engine.Trace
	Code   int             `json:"code"`
	Answer json.RawMessage `json:"answer,omitempty"` // as JSON, if that is what the client takes
}

// traces is whether a write is to be traced.
func (q *request) traces() bool {
	return strings.Contains(q.r.URL.RawQuery, TraceParameter+"=") && q.query().Get(TraceParameter) == "true"
}

// explain carries a dry run out and answers with what it did.
func (q *request) explain() error {
	if q.query().Get("dryRun") != metav1.DryRunAll {
		return apierrors.NewBadRequest(TraceParameter + "=true: only of a dry run, with dryRun=All")
	}
	t := &Traced{}
	q.trace = t
	if err := q.carryOut(); err != nil {
		q.fail(err)
	}
	q.trace = nil
	body, err := json.Marshal(t)
	if err == nil {
		q.write(http.StatusOK, mediaJSON, body)
	}
	return err
}

// sends takes down the object as it was sent.
func (t *Traced) sends(data []byte) {
	if t != nil {
		t.Sent, _, _ = object.DecodeYAML(data) // what cannot be read is refused elsewhere
	}
}

// answers takes down the answer.
func (t *Traced) answers(code int, body []byte) {
	if t.Code = code; json.Valid(body) {
		t.Answer = append(t.Answer, body...)
	}
}
