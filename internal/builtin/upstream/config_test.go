package upstream

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
)

// a server that answers nothing allows nothing, and what strategies ask of it harms nobody.
func TestZeroConfig(t *testing.T) {
	params := map[string]any{"apiVersion": "example.com/v1", "kind": "Param"}
	for _, c := range []struct {
		sample string
		change func(spec map[string]any)
		err    string
	}{
		{"admissionregistration.k8s.io-v1-ValidatingAdmissionPolicy", func(spec map[string]any) { spec["paramKind"] = params },
			"spec.paramKind: Forbidden"},
		{"admissionregistration.k8s.io-v1-MutatingAdmissionPolicy", func(spec map[string]any) { spec["paramKind"] = params },
			"spec.paramKind: Forbidden"},
		{"admissionregistration.k8s.io-v1-ValidatingAdmissionPolicyBinding", func(spec map[string]any) {
			spec["paramRef"] = map[string]any{"name": "x", "parameterNotFoundAction": "Deny"}
		}, "spec.paramRef: Forbidden: unable to get policy p"},
		{"admissionregistration.k8s.io-v1-MutatingAdmissionPolicyBinding", func(spec map[string]any) {
			spec["paramRef"] = map[string]any{"name": "x", "parameterNotFoundAction": "Deny"}
		}, "spec.paramRef: Forbidden: unable to get policy p"},
		{"resource.k8s.io-v1-ResourceClaim", func(spec map[string]any) {
			request := spec["devices"].(map[string]any)["requests"].([]any)[0].(map[string]any)
			request["exactly"].(map[string]any)["adminAccess"] = true
		}, `namespaces "ns" not found`},
	} {
		s := find(t, c.sample)
		ours := &steps{t: t, endpoint: s.endpoint}
		body := s.with(t, func(o map[string]any) { c.change(o["spec"].(map[string]any)) })
		// tester is of system:masters, who are not asked
		ctx := apirequest.WithUser(ours.context("create", "", s.object), &user.DefaultInfo{Name: "somebody"})
		_, err := ours.create(ctx, body)
		if err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got %v, want %s", c.sample, err, c.err)
		}
	}
}

func TestContext(t *testing.T) {
	s := find(t, "events.k8s.io-v1-Event")
	var heard string
	ctx := Request{
		Endpoint: s.endpoint, Verb: "update", Namespace: "ns", Name: "a", Subresource: "sub", User: tester,
		Warn: func(text string) { heard = text },
	}.Context(context.Background())
	info, _ := apirequest.RequestInfoFrom(ctx)
	want := apirequest.RequestInfo{
		IsResourceRequest: true, Verb: "update", APIPrefix: "apis", APIGroup: "events.k8s.io", APIVersion: "v1",
		Namespace: "ns", Resource: "events", Subresource: "sub", Name: "a",
	}
	if info == nil || info.Path != want.Path || info.Verb != want.Verb || info.APIPrefix != want.APIPrefix || info.APIGroup != want.APIGroup ||
		info.Namespace != want.Namespace || info.Resource != want.Resource || info.Subresource != want.Subresource || info.Name != want.Name {
		t.Errorf("got %+v, want %+v", info, want)
	}
	if warning.AddWarning(ctx, "", "careful"); heard != "careful" {
		t.Errorf("heard %q", heard)
	}
	if u, _ := apirequest.UserFrom(ctx); u != tester {
		t.Errorf("got user %v", u)
	}
	if apirequest.NamespaceValue(ctx) != "ns" {
		t.Error("the namespace is missing")
	}
}

// columns belong to the caller, and a row is cells and conditions alone.
func TestColumnsAreOnesOwn(t *testing.T) {
	s := find(t, "v1-Pod")
	columns, err := s.endpoint.Kind.Columns()
	if err != nil {
		t.Fatal(err)
	}
	columns[0].Name = "changed"
	if again, _ := s.endpoint.Kind.Columns(); again[0].Name != "Name" {
		t.Errorf("got %s", again[0].Name)
	}
	row, err := s.endpoint.Kind.Row((&steps{t: t, endpoint: s.endpoint}).read(s.json(t)))
	if err != nil || row.Object.Object != nil {
		t.Errorf("got %v, %v", row.Object, err)
	}
}
