package filters

import (
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
	"k8s.io/apiserver/pkg/util/responsewriter"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/api/request"
)

// Impersonator returns upstream's impersonation filter, which supports constrained impersonation (KEP-5284). The
// filter stores the impersonated user in the variable to which the context value of impersonatedKey points.
func Impersonator(a authorizer.UnconditionalAuthorizer) http.Handler {
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

// Impersonate replaces the user by the one in the Impersonate headers if the caller is allowed to impersonate
// that user (https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation). It returns false if a
// response was written.
func (f *Filters) Impersonate(q *request.Request) bool {
	for name := range q.R.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			return f.impersonateUser(q)
		}
	}
	return true
}

func (f *Filters) impersonateUser(q *request.Request) bool {
	a, caller := &q.Attributes, q.Attributes.User
	info := &apirequest.RequestInfo{
		IsResourceRequest: a.Resource, Path: a.Path, Verb: a.Verb, APIGroup: a.Group, APIVersion: a.Version,
		Namespace: a.Namespace, Resource: a.Plural, Subresource: a.Subresource, Name: a.Name,
		FieldSelector: a.FieldSelector, LabelSelector: a.LabelSelector,
	}
	var as user.Info
	ctx := context.WithValue(q.R.Context(), impersonatedKey{}, &as)
	r := q.R.Clone(apirequest.WithUser(apirequest.WithRequestInfo(ctx, info), caller))
	r.Header.Set("Accept", runtime.ContentTypeJSON)
	response := responsewriter.NewInMemoryResponseWriter()
	f.Impersonator.ServeHTTP(response, r)
	if as == nil {
		q.Fail(recordedError(response.Data()))
		return false
	}
	q.R.Header = withoutImpersonation(q.R.Header)
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

// recordedError returns the Status that the filter wrote as an error.
func recordedError(body []byte) error {
	var s metav1.Status
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &s); err != nil || s.Code == 0 {
		return apierrors.NewInternalError(errors.New(string(body)))
	}
	return &apierrors.StatusError{ErrStatus: s}
}
