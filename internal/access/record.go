package access

import (
	"bytes"
	"encoding/json"
	"maps"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Stages of a request that are recorded, as audit.k8s.io/v1 calls them.
const (
	StageStarted  = "ResponseStarted" // of a watch: the headers have been sent
	StageComplete = "ResponseComplete"
	StagePanic    = "Panic"
)

// maxUserAgent is how much of a User-Agent is kept, upstream's.
const maxUserAgent = 1024

// Record is what is noted of one stage of a request.
type Record struct {
	Attributes                // who wanted what; User is nil where nobody knows
	ID, Stage, URI, UserAgent string
	As                        user.Info // whom User impersonates, or nil
	SourceIPs                 []string
	Code                      int            // of the response; 0: there is none
	Failure                   *metav1.Status // what the response says, if that is why it failed
	Received, Now             time.Time
	Deprecated                bool              // what was asked for will go,
	RemovedRelease            string            // with this release, if that is known
	Annotations               map[string]string // by admission
}

// event is an Event of audit.k8s.io/v1, field by field as upstream writes it.
type event struct {
	Kind         string                     `json:"kind"`
	APIVersion   string                     `json:"apiVersion"`
	Level        string                     `json:"level"`
	ID           string                     `json:"auditID"`
	Stage        string                     `json:"stage"`
	URI          string                     `json:"requestURI"`
	Verb         string                     `json:"verb"`
	User         authenticationv1.UserInfo  `json:"user"`
	Impersonated *authenticationv1.UserInfo `json:"impersonatedUser,omitempty"`
	SourceIPs    []string                   `json:"sourceIPs,omitempty"`
	UserAgent    string                     `json:"userAgent,omitempty"`
	Object       *objectReference           `json:"objectRef,omitempty"`
	Response     *metav1.Status             `json:"responseStatus,omitempty"`
	Received     metav1.MicroTime           `json:"requestReceivedTimestamp"`
	Now          metav1.MicroTime           `json:"stageTimestamp"`
	Annotations  map[string]string          `json:"annotations,omitempty"`
}

type objectReference struct {
	Resource    string `json:"resource,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
	Group       string `json:"apiGroup,omitempty"`
	Version     string `json:"apiVersion,omitempty"`
	Subresource string `json:"subresource,omitempty"`
}

// encode makes one line.
func (r *Record) encode() ([]byte, error) {
	e := event{
		Kind: "Event", APIVersion: "audit.k8s.io/v1", Level: "Metadata",
		ID: r.ID, Stage: r.Stage, URI: r.URI, Verb: r.Verb, User: userInfo(r.User),
		SourceIPs: r.SourceIPs, UserAgent: r.UserAgent,
		Received: metav1.NewMicroTime(r.Received), Now: metav1.NewMicroTime(r.Now),
	}
	if len(e.UserAgent) > maxUserAgent {
		e.UserAgent = e.UserAgent[:maxUserAgent] + "...TRUNCATED"
	}
	if r.As != nil {
		as := userInfo(r.As)
		e.Impersonated = &as
	}
	if r.Resource {
		e.Object = &objectReference{r.Plural, r.Namespace, r.Name, r.Group, r.Version, r.Subresource}
	}
	if r.Code != 0 {
		e.Response = &metav1.Status{Code: int32(r.Code)}
	}
	if f := r.Failure; f != nil && e.Response != nil {
		e.Response.Status, e.Response.Message, e.Response.Reason, e.Response.Details = f.Status, f.Message, f.Reason, f.Details
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
