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

// impersonator returns upstream's impersonation filter, which supports constrained impersonation (KEP-5284). The
// filter stores the impersonated user in the variable to which the context value of impersonatedKey points.
func impersonator(a authorizer.UnconditionalAuthorizer) http.Handler {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	record := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if impersonated, ok := r.Context().Value(impersonatedKey{}).(*user.Info); ok {
			*impersonated, _ = apirequest.UserFrom(r.Context())
		}
	})
	return impersonation.WithConstrainedImpersonation(record, a, serializer.NewCodecFactory(scheme).WithoutConversion())
}

// impersonatedKey is the context key of the pointer that receives the impersonated user.
type impersonatedKey struct{}

// impersonate replaces the user by the one in the Impersonate headers if the caller is allowed to impersonate
// that user (https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation). It returns false if a
// response was written.
func (q *request) impersonate() bool {
	for name := range q.r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return q.impersonateUser()
		}
	}
	return true
}

func (q *request) impersonateUser() bool {
	a, caller := &q.attributes, q.attributes.User
	info := &apirequest.RequestInfo{
		IsResourceRequest: a.Resource, Path: a.Path, Verb: a.Verb, APIGroup: a.Group, APIVersion: a.Version,
		Namespace: a.Namespace, Resource: a.Plural, Subresource: a.Subresource, Name: a.Name,
		FieldSelector: a.FieldSelector, LabelSelector: a.LabelSelector,
	}
	var as user.Info
	ctx := context.WithValue(q.r.Context(), impersonatedKey{}, &as)
	r := q.r.Clone(apirequest.WithUser(apirequest.WithRequestInfo(ctx, info), caller))
	r.Header.Set("Accept", mediaJSON)
	response := &statusRecorder{header: http.Header{}}
	q.server.impersonator.ServeHTTP(response, r)
	if as == nil {
		q.fail(response.err())
		return false
	}
	q.r.Header = withoutImpersonation(q.r.Header)
	a.User = as
	return true
}

// withoutImpersonation returns a copy of h without Impersonate headers.
func withoutImpersonation(h http.Header) http.Header {
	out := make(http.Header, len(h))
	for name, values := range h {
		if !strings.HasPrefix(name, "Impersonate-") {
			out[name] = values
		}
	}
	return out
}

// statusRecorder records the Status that the filter writes. It implements http.ResponseWriter.
type statusRecorder struct {
	header http.Header
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (f *statusRecorder) Header() http.Header { return f.header }

// WriteHeader implements http.ResponseWriter.
func (f *statusRecorder) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (f *statusRecorder) Write(p []byte) (int, error) { return f.body.Write(p) }

// err returns the recorded Status as an error.
func (f *statusRecorder) err() error {
	var s metav1.Status
	if err := kjson.UnmarshalCaseSensitivePreserveInts(f.body.Bytes(), &s); err != nil || s.Code == 0 {
		return apierrors.NewInternalError(errors.New(f.body.String()))
	}
	return &apierrors.StatusError{ErrStatus: s}
}
