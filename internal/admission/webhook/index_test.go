package webhook

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/generic"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
)

// indexFixture is a store with an index of its mutating webhooks.
type indexFixture struct {
	testing.TB
	storage.Store
	*index
}

func newIndexFixture(t testing.TB) *indexFixture {
	store, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return &indexFixture{t, store, newIndex(mutatingConfigurations, store.Head, newClientPool(&egress.Dialer{}))}
}

// put stores a webhook configuration, or deletes it if there are no hooks.
func (s *indexFixture) put(name string, hooks ...string) {
	s.Helper()
	w := storage.Write{Key: mutatingConfigurations.prefix + name}
	if len(hooks) > 0 {
		w.Value = fmt.Appendf(nil, `{"metadata":{"name":%q},"webhooks":[%s]}`, name, strings.Join(hooks, ","))
	}
	s.write(w)
}

func (s *indexFixture) write(w storage.Write) {
	s.Helper()
	if rec := s.Head().Get(w.Key); rec != nil {
		w.Expected = rec.Modified
	}
	if _, err := s.Commit(s.Context(), []storage.Write{w}); err != nil {
		s.Fatal(err)
	}
}

func hookJSON(name, operation, group, plural, more string) string {
	return fmt.Sprintf(`{"name":%q,"clientConfig":{"url":"https://%s.example.com"},"rules":[{"operations":[%q],
		"apiGroups":[%q],"apiVersions":["v1"],"resources":[%q]}]%s}`, name, name, operation, group, plural, more)
}

func newRequest(op admission.Operation, group, plural, sub string) *admission.Request {
	v := &resource.Version{GroupVersion: schema.GroupVersion{Group: group, Version: "v1"}, Served: true}
	v.Definition = &resource.Definition{
		Group: group, Names: resource.Names{Plural: plural, Kind: "Thing"}, Versions: []*resource.Version{v},
	}
	return &admission.Request{
		Operation: op, Version: v, Target: v, Resource: v.GroupVersion.WithResource(plural), Subresource: sub,
		User: &user.DefaultInfo{},
	}
}

// matching returns the names of the webhooks that may match a request.
func (s *indexFixture) matching(r *admission.Request) string {
	var names []string
	for _, h := range s.candidates(r) {
		if h.mayMatch(r) {
			names = append(names, h.GetName())
		}
	}
	return strings.Join(names, " ")
}

func TestIndex(t *testing.T) {
	s := newIndexFixture(t)
	s.put("b", hookJSON("things", "CREATE", "g", "things", ""), hookJSON("all", "*", "*", "*/*", ""))
	s.put("a", hookJSON("status", "UPDATE", "g", "things/status", ""), hookJSON("any", "UPDATE", "g", "*", ""))
	for _, c := range []struct {
		r    *admission.Request
		want string
	}{
		{newRequest("CREATE", "g", "things", ""), "things all"},
		{newRequest("CREATE", "other", "things", ""), "all"},
		{newRequest("UPDATE", "g", "things", ""), "any all"},
		{newRequest("UPDATE", "g", "things", "status"), "status all"},
		{newRequest("UPDATE", "g", "others", ""), "any all"},
		{newRequest("DELETE", "g", "others", ""), "all"},
		{newRequest("CREATE", "admissionregistration.k8s.io", "mutatingwebhookconfigurations", ""), ""},
	} {
		if got := s.matching(c.r); got != c.want {
			t.Errorf("%s %v %s: got %q, want %q", c.r.Operation, c.r.Resource, c.r.Subresource, got, c.want)
		}
	}
	s.put("b", hookJSON("things", "CREATE", "g", "others", ""))
	if got := s.matching(newRequest("CREATE", "g", "things", "")); got != "" {
		t.Errorf("after an update: got %q, want none", got)
	}
	s.put("a")
	s.put("b")
	if got := s.matching(newRequest("UPDATE", "g", "things", "")); got != "" || len(s.clients.clients) != 0 {
		t.Errorf("after the deletions: got %q and %d clients, want none", got, len(s.clients.clients))
	}
}

// TestClientsAreShared checks that webhooks with the same clientConfig share a client, and that the client survives a
// change of other fields.
func TestClientsAreShared(t *testing.T) {
	s := newIndexFixture(t)
	r := newRequest("CREATE", "g", "things", "")
	s.put("a", hookJSON("x", "CREATE", "g", "things", ""), hookJSON("x", "CREATE", "g", "things", ""))
	client := s.candidates(r)[0].client
	s.put("a", hookJSON("x", "CREATE", "g", "*", ""))
	if second := s.candidates(r)[0].client; second != client || client.users != 1 {
		t.Errorf("got the same client %t with %d users, want the same client with 1 user", second == client,
			client.users)
	}
	if _, err := client.rest(); err != nil {
		t.Error(err)
	}
	closed := false
	client.close = func() { closed = true }
	s.put("a")
	if s.candidates(r); !closed {
		t.Error("the client's connections are not closed")
	}
}

// withOtherWebhooks returns a fixture with 100 webhooks that do not match things of the group g.
func withOtherWebhooks(t testing.TB) *indexFixture {
	s := newIndexFixture(t)
	for i := range 50 {
		s.put(fmt.Sprint("a", i), hookJSON(fmt.Sprint("a", i), "CREATE", "g", fmt.Sprint("others", i), ""),
			hookJSON(fmt.Sprint("b", i), "*", fmt.Sprint("other", i), "*", ""))
	}
	return s
}

// TestHandlesAllocatesNothing checks that Handles does not allocate for a write that no webhook matches, even after
// other writes.
func TestHandlesAllocatesNothing(t *testing.T) {
	s := withOtherWebhooks(t)
	var heads []*storage.Snapshot
	for range 200 {
		s.write(storage.Write{Key: "/registry/g/things/default/a", Value: []byte(`{}`)})
		heads = append(heads, s.Head())
	}
	at := 0
	s.index.Head = func() *storage.Snapshot { return heads[min(at, len(heads)-1)] }
	p, r := &plugin{index: s.index}, newRequest("CREATE", "g", "things", "")
	p.Handles(r) // reads the configurations
	if n := testing.AllocsPerRun(100, func() {
		if at++; p.Handles(r) {
			t.Error("the request is handled")
		}
	}); n != 0 {
		t.Errorf("got %v allocations, want 0", n)
	}
}

// BenchmarkHandles measures Handles for a write that none of 100 webhooks matches, after another write.
func BenchmarkHandles(b *testing.B) {
	s := withOtherWebhooks(b)
	var heads []*storage.Snapshot
	for range 1000 {
		s.write(storage.Write{Key: "/registry/g/things/default/a", Value: []byte(`{}`)})
		heads = append(heads, s.Head())
	}
	at := 0
	s.index.Head = func() *storage.Snapshot { return heads[at%len(heads)] }
	p, r := &plugin{index: s.index}, newRequest("CREATE", "g", "things", "")
	b.ReportAllocs()
	for b.Loop() {
		at++
		p.Handles(r)
	}
}

// noopWrite is a write of an empty object without options.
type noopWrite struct {
	admission.Objects
	admission.Reporter
}

func (noopWrite) New(context.Context, *resource.Version) (object.Tree, error) {
	return object.Tree{}, nil
}
func (noopWrite) Old(context.Context, *resource.Version) (object.Tree, error) { return nil, nil }
func (noopWrite) Options() runtime.Object                                     { return nil }

// TestDryRunWithSideEffects checks that webhooks with side effects are not called in a dry run. Configurations created
// with v1beta1 may contain such webhooks. VAL-027
func TestDryRunWithSideEffects(t *testing.T) {
	s := newIndexFixture(t)
	for _, effects := range []string{`,"sideEffects":"Some"`, `,"sideEffects":"Unknown"`, ""} {
		s.put("a", hookJSON("x", "CREATE", "g", "things", effects))
		r := newRequest("CREATE", "g", "things", "")
		r.DryRun, r.Objects, r.Reporter = true, noopWrite{}, noopWrite{}
		review, err := (&plugin{}).newReviewRequest(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		h := s.candidates(r)[0]
		_, err = review.call(t.Context(), h, &generic.WebhookInvocation{Webhook: h}, nil)
		if err == nil || err.Error() != `admission webhook "x" does not support dry run` {
			t.Errorf("%s: %v", effects, err)
		}
	}
}
