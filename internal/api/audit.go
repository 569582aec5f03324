package api

import (
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/access"
)

// audited is what only the audit record wants to know of a request. Nothing is kept where there is none.
type audited struct {
	impersonator user.Info      // who the request came from, if it is another's now
	failure      *metav1.Status // the answer, if it is one
	annotations  map[string]string
}

// note is where to write it down.
func (q *request) note() *audited {
	if q.audited == nil {
		q.audited = &audited{}
	}
	return q.audited
}

// annotate adds to the audit record what admission has to say.
func (q *request) annotate(key, value string) {
	if q.server.config.Audit == nil {
		return
	}
	note := q.note()
	if note.annotations == nil {
		note.annotations = map[string]string{}
	}
	note.annotations[key] = value
}

// record notes a stage of the request.
func (q *request) record(stage auditv1.Stage) {
	r := &access.Record{
		Attributes: q.attributes,
		ID:         q.w.Header().Get("Audit-Id"),
		Stage:      stage,
		URI:        q.r.URL.RequestURI(),
		UserAgent:  q.r.UserAgent(),
		Code:       q.status,
		Received:   q.began,
		Now:        time.Now(),
	}
	if stage == auditv1.StagePanic {
		r.Code = http.StatusInternalServerError
	}
	for _, ip := range utilnet.SourceIPs(q.r) {
		r.SourceIPs = append(r.SourceIPs, ip.String())
	}
	if a := q.audited; a != nil {
		r.Failure, r.Annotations = a.failure, a.annotations
		if a.impersonator != nil {
			r.User, r.As = a.impersonator, q.attributes.User
		}
	}
	if q.v != nil {
		r.Deprecated, r.RemovedRelease = q.v.Deprecated, q.v.RemovedRelease
	}
	q.server.config.Audit.Record(r)
}
