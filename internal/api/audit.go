package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Audit holds the sink and the policy of audit events. The zero value disables auditing. A Sink must not retain
// an event, because the next stage modifies it.
type Audit struct {
	Sink   audit.Sink
	Policy audit.PolicyRuleEvaluator
}

// auditState holds the audit event and the audit settings of a request. request.auditState is nil if the request is
// not audited.
type auditState struct {
	*audit.AuditContext // also stored in the context of the request, where upstream's packages look for it
	config              audit.RequestAuditConfig
	evaluated           bool // config has been set from the policy
	failedEarly         bool // the request failed before authentication ended and gets only one event
	started             bool // the event of the stage ResponseStarted has been sent

	authentication, authorization time.Duration
}

// slowRequest is the duration above which the event of a request has latency annotations. The value is
// kube-apiserver's.
const slowRequest = 500 * time.Millisecond

// beginAudit adds an audit context with the given audit ID to the request.
func (q *request) beginAudit(id string) {
	ctx := audit.WithAuditContext(q.r.Context())
	audit.WithAuditID(ctx, types.UID(id))
	q.r, q.auditState = q.r.WithContext(ctx), &auditState{AuditContext: audit.AuditContextFrom(ctx)}
}

// audit sends the event of the stage RequestReceived. It rejects the request if the sink reports a failure.
func (q *request) audit() bool {
	if q.auditState == nil {
		return true
	}
	q.auditState.authentication = time.Since(q.began)
	if !q.evaluateAuditPolicy() || q.auditState.ProcessEventStage(q.r.Context(), auditinternal.StageRequestReceived) {
		return true
	}
	q.auditState = nil
	audit.ApiserverAuditDroppedCounter.Inc()
	q.internalError("cannot audit a request", errors.New("failed to store audit event"))
	return false
}

// evaluateAuditPolicy sets the audit level of the request. It returns false if the request is not audited.
func (q *request) evaluateAuditPolicy() bool {
	a, ctx := q.auditState, q.r.Context()
	a.config = q.server.config.Audit.Policy.EvaluatePolicyRule(&q.attributes)
	audit.ObservePolicyLevel(ctx, a.config.Level)
	if err := a.Init(a.config, q.server.config.Audit.Sink); err != nil || a.config.Level == auditinternal.LevelNone {
		q.auditState = nil
		return false
	}
	a.evaluated = true
	audit.LogRequestMetadata(ctx, q.r, q.began, &q.attributes)
	return true
}

// failEarly writes the error response to a request that is not yet authenticated.
func (q *request) failEarly(err error) {
	if q.auditState != nil && q.evaluateAuditPolicy() {
		q.auditState.failedEarly = true
	}
	q.fail(err)
}

// auditAuthorization records the result of the authorization.
func (q *request) auditAuthorization(began time.Time, decision authorizer.Decision, reason string, err error) {
	ctx := q.r.Context()
	q.auditState.authorization = time.Since(began)
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

// annotate adds an annotation of an admission plugin to the audit event.
func (q *request) annotate(key, value string) {
	if q.auditState != nil {
		audit.AddAuditAnnotation(q.r.Context(), key, value)
	}
}

// auditsAt reports whether the request is audited at the given level or a higher one.
func (q *request) auditsAt(level auditinternal.Level) bool {
	return q.auditState != nil && q.auditState.evaluated && !q.auditState.config.Level.Less(level)
}

// metaCodecs encode the object metadata for upstream's audit package.
var metaCodecs = internalscheme.Codecs.WithoutConversion()

// auditRequestObject records the object in the body of a create or an update.
func (q *request) auditRequestObject(obj object.Tree) {
	meta := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: object.Name(obj), Namespace: object.Namespace(obj),
		UID: object.UID(obj), ResourceVersion: object.ResourceVersion(obj),
	}}
	gvr := schema.GroupVersionResource{Group: q.group, Version: q.version, Resource: q.plural}
	audit.LogRequestObject(q.r.Context(), meta, metav1.SchemeGroupVersion, gvr, q.subresource, metaCodecs)
	if q.auditsAt(auditinternal.LevelRequest) {
		q.auditState.LogRequestPatch(q.auditJSON(object.AppendJSON(nil, obj)))
	}
}

// auditRequestBody records a request body that is not an object: a patch or options.
func (q *request) auditRequestBody(encode func() ([]byte, error)) {
	if !q.auditsAt(auditinternal.LevelRequest) {
		return
	}
	if js, err := encode(); err == nil && json.Valid(js) { // an invalid body is rejected later
		q.auditState.LogRequestPatch(js)
	}
}

// auditResponse records the response in the audit event. While it calls encode, the negotiated format is JSON, so
// encode returns JSON.
func (q *request) auditResponse(encode func() ([]byte, error)) error {
	if !q.auditsAt(auditinternal.LevelRequestResponse) {
		return nil
	}
	negotiated := q.media
	q.media.format, q.media.pretty = formatJSON, false
	js, err := encode()
	q.media = negotiated
	if err == nil {
		q.auditState.LogResponseObject(nil, &runtime.Unknown{Raw: q.auditJSON(js), ContentType: mediaJSON})
	}
	return err
}

// acceptJSON replaces the media types of other formats in an Accept header with application/json.
var acceptJSON = strings.NewReplacer(mediaProtobuf, mediaJSON, mediaYAML, mediaJSON, mediaCBOR, mediaJSON)

// auditDocument requests the document from h again, as JSON, and records it in the audit event.
func (q *request) auditDocument(h http.Handler) {
	if q.status != http.StatusOK {
		return
	}
	_ = q.auditResponse(func() ([]byte, error) { // the function returns no error
		r := q.r.WithContext(q.r.Context())
		r.Header = http.Header{"Accept": {acceptJSON.Replace(q.r.Header.Get("Accept"))}}
		response := &statusRecorder{header: http.Header{}}
		h.ServeHTTP(response, r)
		return response.body.Bytes(), nil
	})
}

// auditStatus records a response that is a Status.
func (q *request) auditStatus(s *metav1.Status) {
	if !q.auditsAt(auditinternal.LevelMetadata) {
		return
	}
	var raw *runtime.Unknown
	if js, err := json.Marshal(s); err == nil {
		raw = &runtime.Unknown{Raw: js, ContentType: mediaJSON}
	}
	q.auditState.LogResponseObject(s, raw) // upstream selects the parts that the audit level includes
}

// auditJSON returns js for the audit event. js is the JSON of an object, a list or a Table. auditJSON removes
// managedFields if the audit policy omits that field.
func (q *request) auditJSON(js []byte) []byte {
	if !q.auditState.config.OmitManagedFields {
		return js
	}
	t, _, err := object.DecodeJSON(js)
	if err != nil {
		return nil
	}
	omitManagedFields(t)
	return object.AppendJSON(nil, t)
}

func omitManagedFields(t object.Tree) {
	delete(object.Metadata(t), "managedFields")
	for _, list := range [...]string{"items", "rows"} {
		all, _ := t[list].([]any)
		for _, v := range all {
			item, _ := v.(object.Tree)
			if list == "rows" {
				item, _ = item["object"].(object.Tree)
			}
			delete(object.Metadata(item), "managedFields")
		}
	}
}

// auditStart sends the event of the stage ResponseStarted for long-running requests and for requests that failed
// before authentication ended.
func (q *request) auditStart() {
	a := q.auditState
	if a == nil || a.started || !a.failedEarly && !q.isLongRunning() {
		return
	}
	a.started = true
	a.SetEventResponseStatusCode(int32(q.status))
	a.ProcessEventStage(q.r.Context(), auditinternal.StageResponseStarted)
}

// auditEnd sends the last event of the request. p is the value with which the request panicked, or nil.
func (q *request) auditEnd(p any) {
	a, ctx := q.auditState, q.r.Context()
	switch {
	case !a.evaluated: // the request was rejected before the policy was evaluated
		return
	case p != nil:
		a.SetEventResponseStatus(&metav1.Status{
			Code: http.StatusInternalServerError, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInternalError, Message: fmt.Sprintf("APIServer panic'd: %v", p),
		})
		a.ProcessEventStage(ctx, auditinternal.StagePanic)
		return
	case q.status == 0:
		a.SetEventResponseStatus(&metav1.Status{
			Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early",
		})
	default:
		a.SetEventResponseStatusCode(int32(q.status))
	}
	if q.auditStart(); a.failedEarly {
		return
	}
	if q.v != nil && q.v.Deprecated {
		q.annotate("k8s.io/deprecated", "true")
		if q.v.RemovedRelease != "" {
			q.annotate("k8s.io/removed-release", q.v.RemovedRelease)
		}
	}
	if took := time.Since(q.began); took > slowRequest && q.verb != verbWatch {
		q.annotate("apiserver.latency.k8s.io/total", took.String())
		q.annotate("apiserver.latency.k8s.io/authentication", a.authentication.String())
		q.annotate("apiserver.latency.k8s.io/authorization", a.authorization.String())
	}
	a.ProcessEventStage(ctx, auditinternal.StageResponseComplete)
}
