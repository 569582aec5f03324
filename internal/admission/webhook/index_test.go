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

// indexFixture is a store with the index of its mutating webhooks.
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

// put stores a configuration of webhooks, or deletes the one of that name.
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
	return fmt.Sprintf(`{"name":%q,"clientConfig":{"url":"https://%s.example.com"},"rules":[{"operations":[%q],"apiGroups":[%q],"apiVersions":["v1"],"resources":[%q]}]%s}`, name, name, operation, group, plural, more)
}

func newRequest(op admission.Operation, group, plural, sub string) *admission.Request {
	v := &resource.Version{GroupVersion: schema.GroupVersion{Group: group, Version: "v1"}, Served: true}
	v.Definition = &resource.Definition{Group: group, Names: resource.Names{Plural: plural, Kind: "Thing"}, Versions: []*resource.Version{v}}
	return &admission.Request{Operation: op, Version: v, Target: v, Resource: v.GroupVersion.WithResource(plural), Subresource: sub, User: &user.DefaultInfo{}}
}

// matching are the webhooks that want to hear of a request.
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
			t.Errorf("%s %v %s: %q, want %q", c.r.Operation, c.r.Resource, c.r.Subresource, got, c.want)
		}
	}
	s.put("b", hookJSON("things", "CREATE", "g", "others", ""))
	if got := s.matching(newRequest("CREATE", "g", "things", "")); got != "" {
		t.Errorf("after a change: %q", got)
	}
	s.put("a")
	s.put("b")
	if got := s.matching(newRequest("UPDATE", "g", "things", "")); got != "" || len(s.clients.clients) != 0 {
		t.Errorf("after their end: %q, %d callers", got, len(s.clients.clients))
	}
}

// Webhooks that say the same of where they are share connections, which outlive a change of something else.
func TestCallersAreShared(t *testing.T) {
	s := newIndexFixture(t)
	r := newRequest("CREATE", "g", "things", "")
	s.put("a", hookJSON("x", "CREATE", "g", "things", ""), hookJSON("x", "CREATE", "g", "things", ""))
	one := s.candidates(r)[0].client
	s.put("a", hookJSON("x", "CREATE", "g", "*", ""))
	if two := s.candidates(r)[0].client; two != one || one.users != 1 {
		t.Errorf("another caller, or %d users", one.users)
	}
	if _, err := one.rest(); err != nil {
		t.Error(err)
	}
	closed := false
	one.close = func() { closed = true }
	s.put("a")
	if s.candidates(r); !closed {
		t.Error("its connections are not closed")
	}
}

// hundred has a hundred webhooks of which none is about the Things of g.
func hundred(t testing.TB) *indexFixture {
	s := newIndexFixture(t)
	for i := range 50 {
		s.put(fmt.Sprint("a", i), hookJSON(fmt.Sprint("a", i), "CREATE", "g", fmt.Sprint("others", i), ""), hookJSON(fmt.Sprint("b", i), "*", fmt.Sprint("other", i), "*", ""))
	}
	return s
}

// A write that no webhook wants to hear of allocates nothing, also where something else has just been written.
func TestNothingForNoWebhook(t *testing.T) {
	s := hundred(t)
	var heads []*storage.Snapshot
	for range 200 {
		s.write(storage.Write{Key: "/registry/g/things/default/a", Value: []byte(`{}`)})
		heads = append(heads, s.Head())
	}
	at := 0
	s.index.Head = func() *storage.Snapshot { return heads[min(at, len(heads)-1)] }
	p, r := &plugin{index: s.index}, newRequest("CREATE", "g", "things", "")
	p.Handles(r) // which reads the configurations
	if n := testing.AllocsPerRun(100, func() {
		if at++; p.Handles(r) {
			t.Error("one does")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkHandles is what a write that none of a hundred webhooks wants to hear of pays for that, after another write.
func BenchmarkHandles(b *testing.B) {
	s := hundred(b)
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

// noopWrite is a write of an empty object of which nobody hears anything.
type noopWrite struct{ admission.Write }

func (noopWrite) New(context.Context, *resource.Version) (object.Tree, error) { return object.Tree{}, nil }
func (noopWrite) Old(context.Context, *resource.Version) (object.Tree, error) { return nil, nil }
func (noopWrite) Options() runtime.Object                                     { return nil }

// VAL-027: what has side effects is not called for a dry run. Configurations of the time of v1beta1 may say so.
func TestDryRunWithSideEffects(t *testing.T) {
	s := newIndexFixture(t)
	for _, effects := range []string{`,"sideEffects":"Some"`, `,"sideEffects":"Unknown"`, ""} {
		s.put("a", hookJSON("x", "CREATE", "g", "things", effects))
		r := newRequest("CREATE", "g", "things", "")
		r.DryRun, r.Write = true, noopWrite{}
		see, err := (&plugin{}).newReviewRequest(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		h := s.candidates(r)[0]
		_, err = see.call(t.Context(), h, &generic.WebhookInvocation{Webhook: h}, nil)
		if err == nil || err.Error() != `admission webhook "x" does not support dry run` {
			t.Errorf("%s: %v", effects, err)
		}
	}
}
