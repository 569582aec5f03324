package upstream

import (
	"context"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

// warnings reach the client, whether a step returns them or gives them on the way.
func TestWarnings(t *testing.T) {
	s := find(t, "v1-Pod")
	ours := &steps{t: t, endpoint: s.endpoint}
	body := s.with(t, func(o map[string]any) {
		o["spec"].(map[string]any)["nodeSelector"] = map[string]any{"beta.kubernetes.io/os": "linux"}
	})
	if _, err := ours.create(ours.context("create", "", s.object), body); err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(ours.warnings, func(w string) bool { return strings.Contains(w, "beta.kubernetes.io/os") }) {
		t.Errorf("got %q", ours.warnings)
	}
}

// who asks is written down where a kind wants to know.
func TestUser(t *testing.T) {
	s := find(t, "certificates.k8s.io-v1-CertificateSigningRequest")
	ours := &steps{t: t, endpoint: s.endpoint}
	stored, err := ours.create(ours.context("create", "", s.object), s.json(t))
	if err != nil || !strings.Contains(string(stored), `"username":"tester"`) {
		t.Errorf("got %s, %v", stored, err)
	}
}

// a request without what strategies look for in its context is refused, so the context is what makes validation work.
func TestValidationWantsTheRequest(t *testing.T) {
	s := find(t, "v1-ConfigMap")
	ours := &steps{t: t, endpoint: s.endpoint}
	if _, err := ours.create(context.Background(), s.json(t)); err == nil {
		t.Error("declarative validation did without a request")
	}
}

// what a write resets, at the version that it is made at, nobody comes to own.
func TestReset(t *testing.T) {
	owned := fieldpath.NewSet(fieldpath.MakePathOrDie("spec", "replicas"), fieldpath.MakePathOrDie("status", "replicas"),
		fieldpath.MakePathOrDie("metadata", "labels", "a"))
	for _, c := range []struct{ subresource, want string }{
		{"", `{"f:metadata":{"f:labels":{"f:a":{}}},"f:spec":{"f:replicas":{}}}`},
		{"status", `{"f:status":{"f:replicas":{}}}`},
	} {
		u, ok := find(t, "apps-v1-Deployment").endpoint.Kind.Update(c.subresource)
		if !ok {
			t.Fatal(c.subresource)
		}
		filter := u.Reset()["apps/v1"]
		if filter == nil {
			t.Fatalf("%q resets nothing", c.subresource)
		}
		got, err := filter.Filter(owned).ToJSON()
		if err != nil || string(got) != c.want {
			t.Errorf("%q: got %s, %v", c.subresource, got, err)
		}
	}
	if u, _ := find(t, "v1-ConfigMap").endpoint.Kind.Update(""); u.Reset() != nil {
		t.Error("a ConfigMap has nothing to reset")
	}
}

// a PUT creates, and does without a resourceVersion, where upstream lets it.
func TestAllowances(t *testing.T) {
	for name, want := range map[string][2]bool{
		"v1-ConfigMap": {false, true}, "coordination.k8s.io-v1-Lease": {true, false}, "v1-Event": {true, true}, "v1-Service": {true, true},
		"v1-Endpoints": {true, true}, "discovery.k8s.io-v1-EndpointSlice": {false, true}, "networking.k8s.io-v1-IPAddress": {false, true},
	} {
		s := find(t, name)
		ctx := (&steps{t: t, endpoint: s.endpoint}).context("update", "", s.object)
		u, _ := s.endpoint.Kind.Update("")
		if got := [2]bool{u.AllowsCreate(ctx), u.AllowsUnconditional(ctx)}; got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}
