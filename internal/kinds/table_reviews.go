package kinds

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/registry/authentication/selfsubjectreview"
	"k8s.io/kubernetes/pkg/registry/authentication/tokenreview"
	"k8s.io/kubernetes/pkg/registry/authorization/localsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectrulesreview"
	"k8s.io/kubernetes/pkg/registry/authorization/subjectaccessreview"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// reviewer evaluates the objects of a review kind, which are not stored.
type reviewer interface {
	rest.Creater
	rest.Scoper
}

// reviews returns the kinds that authenticate a user and that authorize a request.
func reviews(c Config) []entry {
	authn, authz := versions{authenticationv1.SchemeGroupVersion}, versions{authorizationv1.SchemeGroupVersion}
	scheme := legacyscheme.Scheme
	return []entry{
		{kind: "SelfSubjectReview", plural: "selfsubjectreviews", versions: authn, review: selfsubjectreview.NewREST()},
		{kind: "TokenReview", plural: "tokenreviews", versions: authn,
			review: tokenreview.NewREST(c.Authenticator, c.Audiences)},
		{kind: "LocalSubjectAccessReview", plural: "localsubjectaccessreviews", versions: authz,
			review: localsubjectaccessreview.NewREST(c.Authorizer, scheme)},
		{kind: "SelfSubjectAccessReview", plural: "selfsubjectaccessreviews", versions: authz,
			review: selfsubjectaccessreview.NewREST(c.Authorizer, scheme)},
		{kind: "SelfSubjectRulesReview", plural: "selfsubjectrulesreviews", versions: authz,
			review: selfsubjectrulesreview.NewREST(c.Rules)},
		{kind: "SubjectAccessReview", plural: "subjectaccessreviews", versions: authz,
			review: subjectaccessreview.NewREST(c.Authorizer, scheme)},
	}
}

// defineReview completes the Definition of a review kind. The only verb is create, and the response is the object with
// a status.
func (e *entry) defineReview(d *resource.Definition) {
	d.Namespaced = e.review.NamespaceScoped()
	d.Verbs = []string{"create"}
	goType := typeAt(e.versions[0], d.Names)
	d.Behavior.Review = func(ctx context.Context, t object.Tree) (object.Tree, error) {
		obj, err := goType.ToInternal(t)
		if err != nil {
			return nil, err
		}
		result, err := e.review.Create(ctx, obj, nil, &metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		return goType.FromInternal(result.(resource.Internal))
	}
}
