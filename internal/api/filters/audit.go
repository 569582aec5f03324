package filters

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trellis-k8s/trellis/internal/api/request"
)

// Audit holds the sink and the policy of audit events. The zero value disables auditing. A Sink must not retain
// an event, because the next stage modifies it.
type Audit struct {
	Sink   audit.Sink
	Policy audit.PolicyRuleEvaluator
}

// slowRequest is the duration above which the event of a request has latency annotations. The value is
// kube-apiserver's.
const slowRequest = 500 * time.Millisecond

// beginAudit adds an audit context with the given audit ID to the request.
func (f *Filters) beginAudit(q *request.Request, id string) {
	ctx := audit.WithAuditContext(q.R.Context())
	audit.WithAuditID(ctx, types.UID(id))
	q.R, q.AuditState = q.R.WithContext(ctx), &request.AuditState{AuditContext: audit.AuditContextFrom(ctx)}
}

// Audit sends the event of the stage RequestReceived. It rejects the request if the sink reports a failure.
func (f *Filters) Audit(q *request.Request) bool {
	if q.AuditState == nil {
		return true
	}
	q.AuditState.Authentication = time.Since(q.Began)
	if !f.evaluateAuditPolicy(q) || q.AuditState.ProcessEventStage(q.R.Context(), auditinternal.StageRequestReceived) {
		return true
	}
	q.AuditState = nil
	audit.ApiserverAuditDroppedCounter.Inc()
	q.InternalError("cannot audit a request", errors.New("failed to store audit event"))
	return false
}

// evaluateAuditPolicy sets the audit level of the request. It returns false if the request is not audited.
func (f *Filters) evaluateAuditPolicy(q *request.Request) bool {
	a, ctx := q.AuditState, q.R.Context()
	a.Config = f.Auditing.Policy.EvaluatePolicyRule(&q.Attributes)
	audit.ObservePolicyLevel(ctx, a.Config.Level)
	if err := a.Init(a.Config, f.Auditing.Sink); err != nil || a.Config.Level == auditinternal.LevelNone {
		q.AuditState = nil
		return false
	}
	a.Evaluated = true
	audit.LogRequestMetadata(ctx, q.R, q.Began, &q.Attributes)
	return true
}

// failEarly writes the error response to a request that is not yet authenticated.
func (f *Filters) failEarly(q *request.Request, err error) {
	if q.AuditState != nil && f.evaluateAuditPolicy(q) {
		q.AuditState.FailedEarly = true
	}
	q.Fail(err)
}

// auditAuthorization records the result of the authorization.
func auditAuthorization(q *request.Request, began time.Time, decision authorizer.Decision, reason string, err error) {
	ctx := q.R.Context()
	q.AuditState.Authorization = time.Since(began)
	result := "forbid"
	switch {
	case decision == authorizer.DecisionAllow:
		result = "allow"
	case err != nil:
		audit.AddAuditAnnotation(ctx, "authorization.k8s.io/reason", "internal error")
		return
	}
	audit.AddAuditAnnotations(ctx, "authorization.k8s.io/decision", result, "authorization.k8s.io/reason", reason)
}

// AuditEnd sends the last event of the request. p is the value with which the request panicked, or nil.
func AuditEnd(q *request.Request, p any) {
	a, ctx := q.AuditState, q.R.Context()
	switch {
	case !a.Evaluated: // the request was rejected before the policy was evaluated
		return
	case p != nil:
		a.SetEventResponseStatus(&metav1.Status{
			Code: http.StatusInternalServerError, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInternalError, Message: fmt.Sprintf("APIServer panic'd: %v", p),
		})
		a.ProcessEventStage(ctx, auditinternal.StagePanic)
		return
	case q.Status == 0:
		a.SetEventResponseStatus(&metav1.Status{
			Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early",
		})
	default:
		a.SetEventResponseStatusCode(int32(q.Status))
	}
	if q.AuditStart(); a.FailedEarly {
		return
	}
	if q.Kind != nil && q.Kind.Deprecated {
		q.Annotate("k8s.io/deprecated", "true")
		if q.Kind.RemovedRelease != "" {
			q.Annotate("k8s.io/removed-release", q.Kind.RemovedRelease)
		}
	}
	if took := time.Since(q.Began); took > slowRequest && q.Verb != request.VerbWatch {
		q.Annotate("apiserver.latency.k8s.io/total", took.String())
		q.Annotate("apiserver.latency.k8s.io/authentication", a.Authentication.String())
		q.Annotate("apiserver.latency.k8s.io/authorization", a.Authorization.String())
	}
	a.ProcessEventStage(ctx, auditinternal.StageResponseComplete)
}
