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

// asker answers the questions of a kind whose objects are not stored.
type asker interface {
	rest.Creater
	rest.Scoper
}

// reviews is the kinds that ask the server who somebody is and what they may do.
func reviews(c Config) []line {
	authn, authz, scheme := versions{authenticationv1.SchemeGroupVersion}, versions{authorizationv1.SchemeGroupVersion}, legacyscheme.Scheme
	return []line{
		{kind: "SelfSubjectReview", plural: "selfsubjectreviews", at: authn, asks: selfsubjectreview.NewREST()},
		{kind: "TokenReview", plural: "tokenreviews", at: authn, asks: tokenreview.NewREST(c.Authenticator, c.Audiences)},
		{kind: "LocalSubjectAccessReview", plural: "localsubjectaccessreviews", at: authz, asks: localsubjectaccessreview.NewREST(c.Authorizer, scheme)},
		{kind: "SelfSubjectAccessReview", plural: "selfsubjectaccessreviews", at: authz, asks: selfsubjectaccessreview.NewREST(c.Authorizer, scheme)},
		{kind: "SelfSubjectRulesReview", plural: "selfsubjectrulesreviews", at: authz, asks: selfsubjectrulesreview.NewREST(c.Rules)},
		{kind: "SubjectAccessReview", plural: "subjectaccessreviews", at: authz, asks: subjectaccessreview.NewREST(c.Authorizer, scheme)},
	}
}

// question is for a kind whose objects are answered.
func (l *line) question(d *resource.Definition) {
	d.Namespaced = l.asks.NamespaceScoped()
	d.Verbs = []string{"create"}
	goType := typeAt(l.at[0], d.Names)
	d.Behavior.Review = func(ctx context.Context, t object.Tree) (object.Tree, error) {
		obj, err := goType.ToInternal(t)
		if err != nil {
			return nil, err
		}
		answer, err := l.asks.Create(ctx, obj, nil, &metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		return goType.FromInternal(answer.(resource.Internal))
	}
}
