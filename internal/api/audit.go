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

// Audit is where events about requests go, and at which level each is audited. The zero value audits nothing. A Sink must not
// keep an event: it is used again for the next stage.
type Audit struct {
	Sink   audit.Sink
	Policy audit.PolicyRuleEvaluator
}

// audited is what is known of a request for its events. It is nil where there are none.
type audited struct {
	*audit.AuditContext // which upstream's packages find in the context of the request
	config              audit.RequestAuditConfig
	judged              bool // config is what the policy says
	early               bool // it has failed before it was known who asks, which is one event
	started             bool // its stage ResponseStarted has been sent

	authentication, authorization time.Duration
}

// slow is how long a request takes, at least, whose event says what took the time; upstream's.
const slow = 500 * time.Millisecond

// beginAudit makes room for what is found out about the request.
func (q *request) beginAudit(id string) {
	ctx := audit.WithAuditContext(q.r.Context())
	audit.WithAuditID(ctx, types.UID(id))
	q.r, q.audited = q.r.WithContext(ctx), &audited{AuditContext: audit.AuditContextFrom(ctx)}
}

// audit sends the event that a request has arrived, and refuses it where that has to succeed and does not.
func (q *request) audit() bool {
	if q.audited == nil {
		return true
	}
	q.audited.authentication = time.Since(q.began)
	if !q.judge() || q.audited.ProcessEventStage(q.r.Context(), auditinternal.StageRequestReceived) {
		return true
	}
	q.audited = nil
	audit.ApiserverAuditDroppedCounter.Inc()
	q.internalError("a request could not be audited", errors.New("failed to store audit event"))
	return false
}

// judge asks the policy; false where nothing is to be known of the request.
func (q *request) judge() bool {
	a, ctx := q.audited, q.r.Context()
	a.config = q.server.config.Audit.Policy.EvaluatePolicyRule(&q.attributes)
	audit.ObservePolicyLevel(ctx, a.config.Level)
	if err := a.Init(a.config, q.server.config.Audit.Sink); err != nil || a.config.Level == auditinternal.LevelNone {
		q.audited = nil
		return false
	}
	a.judged = true
	audit.LogRequestMetadata(ctx, q.r, q.began, &q.attributes)
	return true
}

// failEarly answers with an error where it is not known yet who asks.
func (q *request) failEarly(err error) {
	if q.audited != nil && q.judge() {
		q.audited.early = true
	}
	q.fail(err)
}

// auditDecision notes whether the caller may.
func (q *request) auditDecision(began time.Time, decision authorizer.Decision, reason string, err error) {
	ctx := q.r.Context()
	q.audited.authorization = time.Since(began)
	says := "forbid"
	switch {
	case decision == authorizer.DecisionAllow:
		says = "allow"
	case err != nil:
		audit.AddAuditAnnotation(ctx, "authorization.k8s.io/reason", "internal error")
		return
	}
	audit.AddAuditAnnotations(ctx, "authorization.k8s.io/decision", says, "authorization.k8s.io/reason", reason)
}

// annotate adds what admission has to say.
func (q *request) annotate(key, value string) {
	if q.audited != nil {
		audit.AddAuditAnnotation(q.r.Context(), key, value)
	}
}

// audits says whether events of the request have what comes with a level.
func (q *request) audits(level auditinternal.Level) bool {
	return q.audited != nil && q.audited.judged && !q.audited.config.Level.Less(level)
}

// metaCodecs encode what upstream's package wants to see of an object that is sent.
var metaCodecs = internalscheme.Codecs.WithoutConversion()

// auditSent notes what a create or an update is about, and has in its body.
func (q *request) auditSent(sent object.Tree) {
	about := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: object.Name(sent), Namespace: object.Namespace(sent), UID: object.UID(sent), ResourceVersion: object.ResourceVersion(sent),
	}}
	gvr := schema.GroupVersionResource{Group: q.group, Version: q.version, Resource: q.plural}
	audit.LogRequestObject(q.r.Context(), about, metav1.SchemeGroupVersion, gvr, q.subresource, metaCodecs)
	if q.audits(auditinternal.LevelRequest) {
		q.audited.LogRequestPatch(q.auditable(object.AppendJSON(nil, sent)))
	}
}

// auditBody notes a body that is no object: a patch, or options.
func (q *request) auditBody(encode func() ([]byte, error)) {
	if !q.audits(auditinternal.LevelRequest) {
		return
	}
	if js, err := encode(); err == nil && json.Valid(js) { // what is not is refused
		q.audited.LogRequestPatch(js)
	}
}

// auditAnswer notes an answer, which encode makes as JSON.
func (q *request) auditAnswer(encode func() ([]byte, error)) error {
	if !q.audits(auditinternal.LevelRequestResponse) {
		return nil
	}
	negotiated := q.media
	q.media.format, q.media.pretty = formatJSON, false
	js, err := encode()
	q.media = negotiated
	if err == nil {
		q.audited.LogResponseObject(nil, &runtime.Unknown{Raw: q.auditable(js), ContentType: mediaJSON})
	}
	return err
}

// inJSON is an Accept header for the same in JSON.
var inJSON = strings.NewReplacer(mediaProtobuf, mediaJSON, mediaYAML, mediaJSON, mediaCBOR, mediaJSON)

// auditDocument notes what h has answered with a document.
func (q *request) auditDocument(h http.Handler) {
	if q.status != http.StatusOK {
		return
	}
	_ = q.auditAnswer(func() ([]byte, error) { // which does not fail
		r := q.r.WithContext(q.r.Context())
		r.Header = http.Header{"Accept": {inJSON.Replace(q.r.Header.Get("Accept"))}}
		answer := &refusal{header: http.Header{}}
		h.ServeHTTP(answer, r)
		return answer.body.Bytes(), nil
	})
}

// auditStatus notes an answer that is a Status.
func (q *request) auditStatus(s *metav1.Status) {
	if !q.audits(auditinternal.LevelMetadata) {
		return
	}
	var raw *runtime.Unknown
	if js, err := json.Marshal(s); err == nil {
		raw = &runtime.Unknown{Raw: js, ContentType: mediaJSON}
	}
	q.audited.LogResponseObject(s, raw) // which it takes at its level
}

// auditable is the JSON of an object or of several, without managedFields where the policy omits them.
func (q *request) auditable(js []byte) []byte {
	if !q.audited.config.OmitManagedFields {
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

// auditStart sends the event that an answer begins.
func (q *request) auditStart() {
	a := q.audited
	if a == nil || a.started || !a.early && !q.lasts() {
		return
	}
	a.started = true
	a.SetEventResponseStatusCode(int32(q.status))
	a.ProcessEventStage(q.r.Context(), auditinternal.StageResponseStarted)
}

// auditEnd sends the last event; p is what the request has panicked with, if it has.
func (q *request) auditEnd(p any) {
	a, ctx := q.audited, q.r.Context()
	switch {
	case !a.judged: // it was not let in
		return
	case p != nil:
		a.SetEventResponseStatus(&metav1.Status{
			Code: http.StatusInternalServerError, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError, Message: fmt.Sprintf("APIServer panic'd: %v", p),
		})
		a.ProcessEventStage(ctx, auditinternal.StagePanic)
		return
	case q.status == 0:
		a.SetEventResponseStatus(&metav1.Status{Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early"})
	default:
		a.SetEventResponseStatusCode(int32(q.status))
	}
	if q.auditStart(); a.early {
		return
	}
	if q.v != nil && q.v.Deprecated {
		q.annotate("k8s.io/deprecated", "true")
		if q.v.RemovedRelease != "" {
			q.annotate("k8s.io/removed-release", q.v.RemovedRelease)
		}
	}
	if took := time.Since(q.began); took > slow && q.verb != verbWatch {
		q.annotate("apiserver.latency.k8s.io/total", took.String())
		q.annotate("apiserver.latency.k8s.io/authentication", a.authentication.String())
		q.annotate("apiserver.latency.k8s.io/authorization", a.authorization.String())
	}
	a.ProcessEventStage(ctx, auditinternal.StageResponseComplete)
}
