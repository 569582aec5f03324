package kinds

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/registry/authentication/selfsubjectreview"
	"k8s.io/kubernetes/pkg/registry/authentication/tokenreview"
	"k8s.io/kubernetes/pkg/registry/authorization/localsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectaccessreview"
	"k8s.io/kubernetes/pkg/registry/authorization/selfsubjectrulesreview"
	"k8s.io/kubernetes/pkg/registry/authorization/subjectaccessreview"

	"github.com/trellis-k8s/trellis/internal/kinds/define"
)

// reviews returns the kinds that authenticate a user and that authorize a request.
func reviews(c Config) []define.Entry {
	authn, authz := versions{authenticationv1.SchemeGroupVersion}, versions{authorizationv1.SchemeGroupVersion}
	scheme := legacyscheme.Scheme
	return []define.Entry{
		{Kind: "SelfSubjectReview", Plural: "selfsubjectreviews", Versions: authn, Review: selfsubjectreview.NewREST()},
		{Kind: "TokenReview", Plural: "tokenreviews", Versions: authn,
			Review: tokenreview.NewREST(c.Authenticator, c.Audiences)},
		{Kind: "LocalSubjectAccessReview", Plural: "localsubjectaccessreviews", Versions: authz,
			Review: localsubjectaccessreview.NewREST(c.Authorizer, scheme)},
		{Kind: "SelfSubjectAccessReview", Plural: "selfsubjectaccessreviews", Versions: authz,
			Review: selfsubjectaccessreview.NewREST(c.Authorizer, scheme)},
		{Kind: "SelfSubjectRulesReview", Plural: "selfsubjectrulesreviews", Versions: authz,
			Review: selfsubjectrulesreview.NewREST(c.Rules)},
		{Kind: "SubjectAccessReview", Plural: "subjectaccessreviews", Versions: authz,
			Review: subjectaccessreview.NewREST(c.Authorizer, scheme)},
	}
}
