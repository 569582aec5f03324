package api

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	kjson "sigs.k8s.io/json"
)

// impersonator decides who may act as whom: upstream's filter, with the constraints of KEP-5284, which tells the user that the
// request is from then on.
func impersonator(a authorizer.UnconditionalAuthorizer) http.Handler {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	tell := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if told, ok := r.Context().Value(toldKey{}).(*user.Info); ok {
			*told, _ = apirequest.UserFrom(r.Context())
		}
	})
	return impersonation.WithConstrainedImpersonation(tell, a, serializer.NewCodecFactory(scheme).WithoutConversion())
}

// toldKey is where the context of a request has the place for the user.
type toldKey struct{}

// impersonate makes the request one of the user it names, if it names one and the caller may
// (https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation).
func (q *request) impersonate() bool {
	for name := range q.r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return q.actAs()
		}
	}
	return true
}

func (q *request) actAs() bool {
	a, caller := &q.attributes, q.attributes.User
	info := &apirequest.RequestInfo{
		IsResourceRequest: a.Resource, Path: a.Path, Verb: a.Verb, APIGroup: a.Group, APIVersion: a.Version,
		Namespace: a.Namespace, Resource: a.Plural, Subresource: a.Subresource, Name: a.Name,
		FieldSelector: a.FieldSelector, LabelSelector: a.LabelSelector,
	}
	var as user.Info
	ctx := context.WithValue(q.r.Context(), toldKey{}, &as)
	r := q.r.Clone(apirequest.WithUser(apirequest.WithRequestInfo(ctx, info), caller))
	r.Header.Set("Accept", mediaJSON)
	answer := &refusal{header: http.Header{}}
	q.server.impersonator.ServeHTTP(answer, r)
	if as == nil {
		q.fail(answer.err())
		return false
	}
	q.r.Header = withoutImpersonation(q.r.Header)
	a.User = as
	return true
}

// withoutImpersonation is a header for who must not know that a request is somebody else's.
func withoutImpersonation(h http.Header) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		if !strings.HasPrefix(name, "Impersonate-") {
			out[name] = values
		}
	}
	return out
}

// refusal takes the Status that the filter answers.
type refusal struct {
	header http.Header
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (f *refusal) Header() http.Header { return f.header }

// WriteHeader implements http.ResponseWriter.
func (f *refusal) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (f *refusal) Write(p []byte) (int, error) { return f.body.Write(p) }

// err is the Status that was written.
func (f *refusal) err() error {
	var s metav1.Status
	if err := kjson.UnmarshalCaseSensitivePreserveInts(f.body.Bytes(), &s); err != nil || s.Code == 0 {
		return apierrors.NewInternalError(errors.New(f.body.String()))
	}
	return &apierrors.StatusError{ErrStatus: s}
}
