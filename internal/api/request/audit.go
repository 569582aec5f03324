package request

import (
	"encoding/json"
	"time"

	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/object"
)

// AuditState holds the audit event and the audit settings of a request. request.auditState is nil if the request is
// not audited.
type AuditState struct {
	*audit.AuditContext // also stored in the context of the request, where upstream's packages look for it
	Config              audit.RequestAuditConfig
	Evaluated           bool // config has been set from the policy
	FailedEarly         bool // the request failed before authentication ended and gets only one event
	started             bool // the event of the stage ResponseStarted has been sent

	Authentication, Authorization time.Duration
}

// Annotate adds an annotation of an admission plugin to the audit event.
func (q *Request) Annotate(key, value string) {
	if q.AuditState != nil {
		audit.AddAuditAnnotation(q.R.Context(), key, value)
	}
}

// auditsAt reports whether the request is audited at the given level or a higher one.
func (q *Request) auditsAt(level auditinternal.Level) bool {
	return q.AuditState != nil && q.AuditState.Evaluated && !q.AuditState.Config.Level.Less(level)
}

// metaCodecs encode the object metadata for upstream's audit package.
var metaCodecs = internalscheme.Codecs.WithoutConversion()

// AuditRequestObject records the object in the body of a create or an update.
func (q *Request) AuditRequestObject(obj object.Tree) {
	meta := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name: object.Name(obj), Namespace: object.Namespace(obj),
		UID: object.UID(obj), ResourceVersion: object.ResourceVersion(obj),
	}}
	gvr := schema.GroupVersionResource{Group: q.Group, Version: q.Version, Resource: q.Plural}
	audit.LogRequestObject(q.R.Context(), meta, metav1.SchemeGroupVersion, gvr, q.Subresource, metaCodecs)
	if q.auditsAt(auditinternal.LevelRequest) {
		q.AuditState.LogRequestPatch(q.auditJSON(object.AppendJSON(nil, obj)))
	}
}

// AuditRequestBody records a request body that is not an object: a patch or options.
func (q *Request) AuditRequestBody(encode func() ([]byte, error)) {
	if !q.auditsAt(auditinternal.LevelRequest) {
		return
	}
	if js, err := encode(); err == nil && json.Valid(js) { // an invalid body is rejected later
		q.AuditState.LogRequestPatch(js)
	}
}

// AuditResponse records the response in the audit event. While it calls encode, the negotiated format is JSON, so
// encode returns JSON.
func (q *Request) AuditResponse(encode func() ([]byte, error)) error {
	if !q.auditsAt(auditinternal.LevelRequestResponse) {
		return nil
	}
	negotiated := q.Media
	q.Media.Format, q.Media.Pretty = encoding.FormatJSON, false
	js, err := encode()
	q.Media = negotiated
	if err == nil {
		q.AuditState.LogResponseObject(nil,
			&runtime.Unknown{Raw: q.auditJSON(js), ContentType: runtime.ContentTypeJSON})
	}
	return err
}

// AuditStatus records a response that is a Status.
func (q *Request) AuditStatus(s *metav1.Status) {
	if !q.auditsAt(auditinternal.LevelMetadata) {
		return
	}
	var raw *runtime.Unknown
	if js, err := json.Marshal(s); err == nil {
		raw = &runtime.Unknown{Raw: js, ContentType: runtime.ContentTypeJSON}
	}
	q.AuditState.LogResponseObject(s, raw) // upstream selects the parts that the audit level includes
}

// auditJSON returns js for the audit event. js is the JSON of an object, a list or a Table. auditJSON removes
// managedFields if the audit policy omits that field.
func (q *Request) auditJSON(js []byte) []byte {
	if !q.AuditState.Config.OmitManagedFields {
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

// AuditStart sends the event of the stage ResponseStarted for long-running requests and for requests that failed
// before authentication ended.
func (q *Request) AuditStart() {
	a := q.AuditState
	if a == nil || a.started || !a.FailedEarly && !q.IsLongRunning() {
		return
	}
	a.started = true
	a.SetEventResponseStatusCode(int32(q.Status))
	a.ProcessEventStage(q.R.Context(), auditinternal.StageResponseStarted)
}
