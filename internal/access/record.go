package access

import (
	"bytes"
	"encoding/json"
	"maps"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// maxUserAgent is how much of a User-Agent is kept, upstream's.
const maxUserAgent = 1024

// Record is what is noted of one stage of a request.
type Record struct {
	Attributes         // who wanted what; User is nil where nobody knows
	Stage              auditv1.Stage
	ID, URI, UserAgent string
	As                 user.Info // whom User impersonates, or nil
	SourceIPs          []string
	Code               int            // of the response; 0: there is none
	Failure            *metav1.Status // what the response says, if that is why it failed
	Received, Now      time.Time
	Deprecated         bool              // what was asked for will go,
	RemovedRelease     string            // with this release, if that is known
	Annotations        map[string]string // by admission
}

// encode makes one line.
func (r *Record) encode() ([]byte, error) {
	e := auditv1.Event{
		TypeMeta: metav1.TypeMeta{Kind: "Event", APIVersion: auditv1.SchemeGroupVersion.String()}, Level: auditv1.LevelMetadata,
		AuditID: types.UID(r.ID), Stage: r.Stage, RequestURI: r.URI, Verb: r.Verb, User: userInfo(r.User),
		SourceIPs: r.SourceIPs, UserAgent: r.UserAgent,
		RequestReceivedTimestamp: metav1.NewMicroTime(r.Received), StageTimestamp: metav1.NewMicroTime(r.Now),
	}
	if len(e.UserAgent) > maxUserAgent {
		e.UserAgent = e.UserAgent[:maxUserAgent] + "...TRUNCATED"
	}
	if r.As != nil {
		as := userInfo(r.As)
		e.ImpersonatedUser = &as
	}
	if r.Resource {
		e.ObjectRef = &auditv1.ObjectReference{
			Resource: r.Plural, Namespace: r.Namespace, Name: r.Name, APIGroup: r.Group, APIVersion: r.Version, Subresource: r.Subresource,
		}
	}
	if r.Code != 0 {
		e.ResponseStatus = &metav1.Status{Code: int32(r.Code)}
	}
	if f := r.Failure; f != nil && e.ResponseStatus != nil {
		to := e.ResponseStatus
		to.Status, to.Message, to.Reason, to.Details = f.Status, f.Message, f.Reason, f.Details
	}
	e.Annotations = maps.Clone(r.Annotations)
	if r.Deprecated {
		if e.Annotations == nil {
			e.Annotations = map[string]string{}
		}
		e.Annotations["k8s.io/deprecated"] = "true"
		if r.RemovedRelease != "" {
			e.Annotations["k8s.io/removed-release"] = r.RemovedRelease
		}
	}
	var line bytes.Buffer
	to := json.NewEncoder(&line)
	to.SetEscapeHTML(false) // a URI is looked for as it was sent
	err := to.Encode(&e)
	return line.Bytes(), err
}

func userInfo(u user.Info) (out authenticationv1.UserInfo) {
	if u == nil {
		return out
	}
	out = authenticationv1.UserInfo{Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups()}
	for key, values := range u.GetExtra() {
		if out.Extra == nil {
			out.Extra = map[string]authenticationv1.ExtraValue{}
		}
		out.Extra[key] = values
	}
	return out
}
