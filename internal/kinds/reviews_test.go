package kinds_test

import (
	"context"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/object"
)

// allowGet is an authorizer that allows only the verb get, to every user.
type allowGet struct{}

func (allowGet) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.IsResourceRequest() && a.GetVerb() == "get" {
		return authorizer.DecisionAllow, "because " + a.GetUser().GetName(), nil
	}
	return authorizer.DecisionNoOpinion, "because " + a.GetUser().GetName(), nil
}

// TestReviews checks the reviews that kubectl auth whoami and kubectl auth can-i send, and the reviews that other
// servers send about their users. CRD-069 AGG-038
func TestReviews(t *testing.T) {
	c := serveCluster(t, kinds.Config{Authorizer: allowGet{}})
	c.user = plainUser
	for _, q := range []struct{ apiVersion, kind, body, want, err string }{
		{"authentication.k8s.io/v1", "SelfSubjectReview", `{}`, `{"userInfo":{"username":"plain"}}`, ""},
		{"authorization.k8s.io/v1", "SelfSubjectAccessReview", `{spec: {resourceAttributes: {verb: get}}}`,
			`{"allowed":true,"reason":"because plain"}`, ""},
		{"authorization.k8s.io/v1", "SelfSubjectAccessReview",
			`{spec: {nonResourceAttributes: {path: /}}, status: {allowed: true}}`,
			`{"allowed":false,"reason":"because plain"}`, ""},
		{"authorization.k8s.io/v1", "SelfSubjectAccessReview", `{}`, "",
			"exactly one of nonResourceAttributes or resourceAttributes must be specified"},
		{"authorization.k8s.io/v1", "SelfSubjectAccessReview", `{metadata: {name: a}, spec: {resourceAttributes: {}}}`,
			"", "must be empty"},
		{"authorization.k8s.io/v1", "SelfSubjectRulesReview", `{}`, "", `no namespace on request`},
		{"authorization.k8s.io/v1", "SelfSubjectRulesReview", `{spec: {namespace: a}}`,
			`{"incomplete":true,"nonResourceRules":[],"resourceRules":[]}`, ""},
		{"authorization.k8s.io/v1", "SubjectAccessReview", `{spec: {user: other, resourceAttributes: {verb: get}}}`,
			`{"allowed":true,"reason":"because other"}`, ""},
		{"authorization.k8s.io/v1", "SubjectAccessReview", `{spec: {resourceAttributes: {verb: get}}}`, "",
			"at least one of user or group must be specified"},
		{"authorization.k8s.io/v1", "LocalSubjectAccessReview",
			`{metadata: {namespace: ns}, spec: {user: other, resourceAttributes: {verb: get, namespace: ns}}}`,
			`{"allowed":true,"reason":"because other"}`, ""},
		{"authorization.k8s.io/v1", "LocalSubjectAccessReview",
			`{metadata: {namespace: ns}, spec: {user: other, resourceAttributes: {verb: get, namespace: else}}}`, "",
			`spec.resourceAttributes.namespace: Invalid value: "else": must match metadata.namespace`},
		{"authorization.k8s.io/v1", "LocalSubjectAccessReview",
			`{spec: {user: other, resourceAttributes: {verb: get, namespace: ns}}}`,
			`{"allowed":true,"reason":"because other"}`, ""},
		{"authorization.k8s.io/v1", "LocalSubjectAccessReview",
			`{spec: {user: other, resourceAttributes: {verb: get}}}`, "",
			`spec.resourceAttributes.namespace: Invalid value: "": must match metadata.namespace`},
		{"authorization.k8s.io/v1", "LocalSubjectAccessReview",
			`{metadata: {namespace: else}, spec: {user: other, resourceAttributes: {verb: get, namespace: else}}}`, "",
			"the namespace of the provided object does not match the namespace sent on the request"},
	} {
		review, err := c.create(c.version(q.apiVersion, q.kind), q.body)
		if q.err != "" {
			expectError(t, err, q.err)
			continue
		}
		if err != nil {
			t.Errorf("%s %s: %v", q.kind, q.body, err)
			continue
		}
		got := object.TreeAt(review, "status")
		if u, ok := got["userInfo"].(object.Tree); ok {
			delete(u, "extra")
		}
		js, _ := yaml.YAMLToJSON(object.AppendJSON(nil, got))
		if string(js) != q.want {
			t.Errorf("%s %s\ngot  %s\nwant %s", q.kind, q.body, js, q.want)
		}
	}
}
