package rbac_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	upstream "k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/trellis-k8s/trellis/internal/access/rbac"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
)

// fixture has the same objects twice: in a store with an Index, and in the caches of upstream's authorizer.
type fixture struct {
	testing.TB
	store  storage.Store
	index  *rbac.Index
	caches map[string]cache.Indexer // by plural

	upstream *upstream.RBACAuthorizer
	resolver *validation.DefaultRuleResolver
}

func newFixture(t testing.TB) *fixture {
	store, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	fx := &fixture{TB: t, store: store, index: rbac.New(store.Head), caches: map[string]cache.Indexer{}}
	for _, plural := range []string{"roles", "rolebindings", "clusterroles", "clusterrolebindings"} {
		fx.caches[plural] = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{
			cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
		})
	}
	roles := &upstream.RoleGetter{Lister: rbaclisters.NewRoleLister(fx.caches["roles"])}
	bindings := &upstream.RoleBindingLister{Lister: rbaclisters.NewRoleBindingLister(fx.caches["rolebindings"])}
	clusterRoles := &upstream.ClusterRoleGetter{Lister: rbaclisters.NewClusterRoleLister(fx.caches["clusterroles"])}
	clusterBindings := &upstream.ClusterRoleBindingLister{
		Lister: rbaclisters.NewClusterRoleBindingLister(fx.caches["clusterrolebindings"]),
	}
	fx.upstream = upstream.New(roles, bindings, clusterRoles, clusterBindings)
	fx.resolver = validation.NewDefaultRuleResolver(roles, bindings, clusterRoles, clusterBindings)
	return fx
}

// put stores an object on both sides. nil deletes the object. key is namespace/name or name.
func (fx *fixture) put(plural, key string, obj runtime.Object) {
	fx.Helper()
	c := fx.caches[plural]
	write := storage.Write{Key: "/registry/" + plural + "/" + key}
	if rec := fx.store.Head().Get(write.Key); rec != nil {
		write.Expected = rec.Modified
	}
	var err error
	if obj != nil {
		if write.Value, err = json.Marshal(obj); err == nil {
			err = c.Update(obj)
		}
	} else if old, ok, _ := c.GetByKey(key); ok {
		err = c.Delete(old)
	} else {
		return
	}
	if err != nil {
		fx.Fatal(err)
	}
	if _, err := fx.store.Commit(fx.Context(), []storage.Write{write}); err != nil {
		fx.Fatal(err)
	}
}

// checkDecision checks that both sides return the same decision for a request.
func (fx *fixture) checkDecision(a authorizer.Attributes) {
	fx.Helper()
	decision, reason, err := fx.index.Authorize(fx.Context(), a)
	want, wantReason, _ := fx.upstream.Authorize(fx.Context(), a)
	if err != nil || decision != want {
		fx.Fatalf("%+v: got %v %q %v, want %v %q", a, decision, reason, err, want, wantReason)
	}
	if want != authorizer.DecisionAllow {
		if sortedErrors(reason) != sortedErrors(wantReason) {
			fx.Fatalf("%+v: got reason %q, want %q", a, reason, wantReason)
		}
		return
	}
	var reasons []string // if several bindings allow a request, upstream returns any of them
	fx.resolver.VisitRulesFor(fx.Context(), a.GetUser(), a.GetNamespace(),
		func(source fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool {
			if err == nil && upstream.RuleAllows(a, rule) {
				reasons = append(reasons, "RBAC: allowed by "+source.String())
			}
			return true
		})
	if !slices.Contains(reasons, reason) {
		fx.Fatalf("%+v: got reason %q, want one of %q", a, reason, reasons)
	}
}

// sortedErrors returns the errors in a reason in sorted order.
func sortedErrors(reason string) string {
	list := strings.Split(strings.NewReplacer("[", "", "]", "", "RBAC: ", "").Replace(reason), ", ")
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func pick[T any](r *rand.Rand, choices ...T) T { return choices[r.IntN(len(choices))] }

func some(r *rand.Rand, choices ...string) (out []string) {
	for range 1 + r.IntN(2) {
		out = append(out, pick(r, choices...))
	}
	return out
}

func randomRules(r *rand.Rand) (rules []rbacv1.PolicyRule) {
	for range r.IntN(3) {
		rule := rbacv1.PolicyRule{Verbs: some(r, "get", "list", "create", "*")}
		if r.IntN(4) == 0 {
			rule.NonResourceURLs = some(r, "/healthz", "/healthz/*", "*", "/metrics")
		} else {
			rule.APIGroups = some(r, "", "apps", "*")
			rule.Resources = some(r, "pods", "pods/status", "*/status", "*", "nodes")
			if r.IntN(3) == 0 {
				rule.ResourceNames = some(r, "a", "b")
			}
		}
		rules = append(rules, rule)
	}
	return rules
}

func randomSubjects(r *rand.Rand) (subjects []rbacv1.Subject) {
	for range r.IntN(4) {
		subjects = append(subjects, rbacv1.Subject{
			Kind: pick(r, "User", "Group", "ServiceAccount", "Robot"), Name: pick(r, "a", "b", "c"),
			Namespace: pick(r, "", "n1", "n2"),
		})
	}
	return subjects
}

func randomRef(r *rand.Rand) rbacv1.RoleRef {
	return rbacv1.RoleRef{
		APIGroup: rbacv1.GroupName, Kind: pick(r, "Role", "ClusterRole", "ClusterRole", "Other"),
		Name: pick(r, "a", "b", "c"),
	}
}

// change changes, creates or deletes a random object.
func (fx *fixture) change(r *rand.Rand) {
	meta := metav1.ObjectMeta{Name: pick(r, "a", "b", "c"), Namespace: pick(r, "n1", "n2")}
	local, remove := meta.Namespace+"/"+meta.Name, r.IntN(4) == 0
	plural, key, obj := "roles", local, runtime.Object(&rbacv1.Role{ObjectMeta: meta, Rules: randomRules(r)})
	switch r.IntN(4) {
	case 0:
		plural, obj = "rolebindings", &rbacv1.RoleBinding{
			ObjectMeta: meta, Subjects: randomSubjects(r), RoleRef: randomRef(r),
		}
	case 1:
		meta.Namespace = ""
		plural, key, obj = "clusterroles", meta.Name, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: randomRules(r)}
	case 2:
		meta.Namespace = ""
		plural, key, obj = "clusterrolebindings", meta.Name, &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, Subjects: randomSubjects(r), RoleRef: randomRef(r),
		}
	}
	if remove {
		obj = nil
	}
	fx.put(plural, key, obj)
}

func randomAttributes(r *rand.Rand) authorizer.AttributesRecord {
	a := authorizer.AttributesRecord{
		User: &user.DefaultInfo{
			Name:   pick(r, "a", "b", "c", "system:serviceaccount:n1:a", "system:serviceaccount:n2:b"),
			Groups: some(r, "a", "b", "c"),
		},
		Verb: pick(r, "get", "list", "create", "delete"),
	}
	if r.IntN(4) == 0 {
		a.Path = pick(r, "/healthz", "/healthz/ping", "/metrics", "/x")
		return a
	}
	a.ResourceRequest, a.Namespace = true, pick(r, "", "n1", "n2")
	a.APIGroup, a.Resource = pick(r, "", "apps"), pick(r, "pods", "nodes")
	a.Subresource, a.Name = pick(r, "", "", "status"), pick(r, "", "a", "b")
	return a
}

// TestDecisionsAsUpstream checks that decisions on random, changing policies equal those of upstream's authorizer.
// AGG-005 EXT-012 EXT-013 EXT-026
func TestDecisionsAsUpstream(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 7))
		fx := newFixture(t)
		for range 150 {
			fx.change(r)
			for range 10 {
				fx.checkDecision(randomAttributes(r))
			}
		}
	}
}

// TestRulesAsUpstream checks that the rules of users and of roles equal those of upstream's resolver. EXT-002
func TestRulesAsUpstream(t *testing.T) {
	fx := newFixture(t)
	r := rand.New(rand.NewPCG(1, 2))
	resolver := rbac.Resolver{Index: fx.index}
	text := func(rules []rbacv1.PolicyRule, err error) string {
		var lines []string
		for i := range rules {
			lines = append(lines, fmt.Sprint(rules[i]))
		}
		slices.Sort(lines)
		if err != nil {
			lines = append(lines, sortedErrors(err.Error()))
		}
		return strings.Join(lines, "\n")
	}
	for range 300 {
		fx.change(r)
		a := randomAttributes(r)
		u := &user.DefaultInfo{Name: a.User.GetName(), Groups: slices.Compact(a.User.GetGroups())}
		got := text(resolver.RulesFor(t.Context(), u, a.Namespace))
		want := text(fx.resolver.RulesFor(t.Context(), u, a.Namespace))
		if got != want {
			t.Fatalf("rules of %v in %q:\n%s\nwant\n%s", u, a.Namespace, got, want)
		}
		resources, nonResources, _, _ := fx.index.RulesFor(t.Context(), u, a.Namespace)
		wantResources, wantNonResources, _, _ := fx.upstream.RulesFor(t.Context(), u, a.Namespace)
		if len(resources) != len(wantResources) || len(nonResources) != len(wantNonResources) {
			t.Fatalf("got %d resource and %d non-resource rules, want %d and %d",
				len(resources), len(nonResources), len(wantResources), len(wantNonResources))
		}
		ref := randomRef(r)
		got = text(resolver.GetRoleReferenceRules(t.Context(), ref, "n1"))
		want = text(fx.resolver.GetRoleReferenceRules(t.Context(), ref, "n1"))
		if got != want {
			t.Fatalf("rules of %v: %s, want %s", ref, got, want)
		}
	}
}

// TestInForceDuringConcurrentRequests checks that a binding is in force when its write has returned, and no longer in
// force when its deletion has returned, while other requests are being authorized.
func TestInForceDuringConcurrentRequests(t *testing.T) {
	fx := newFixture(t)
	fx.put("clusterroles", "reader", &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{"example.com"},
			Resources: []string{"crontabs"}}}})
	done := make(chan struct{})
	var others sync.WaitGroup
	for i := range 3 {
		others.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					_, _, _ = fx.index.Authorize(t.Context(), request(i))
				}
			}
		})
	}
	for range 300 {
		fx.bind(0, "user-7")
		if d, _, _ := fx.index.Authorize(t.Context(), request(7)); d != authorizer.DecisionAllow {
			t.Fatal("a binding is not in force")
		}
		fx.put("clusterrolebindings", "binding-0", nil)
		if d, _, _ := fx.index.Authorize(t.Context(), request(7)); d == authorizer.DecisionAllow {
			t.Fatal("a deleted binding is in force")
		}
	}
	close(done)
	others.Wait()
}

// newLargeFixture returns a fixture with n ClusterRoleBindings of different users.
func newLargeFixture(b *testing.B, n int) *fixture {
	fx := newFixture(b)
	rules := []rbacv1.PolicyRule{
		{
			Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"example.com"},
			Resources: []string{"crontabs", "crontabs/status"},
		},
	}
	fx.put("clusterroles", "reader", &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "reader"}, Rules: rules})
	for i := range n {
		fx.bind(i, fmt.Sprintf("user-%d", i))
	}
	return fx
}

func (fx *fixture) bind(i int, name string) {
	meta := metav1.ObjectMeta{Name: fmt.Sprintf("binding-%d", i)}
	fx.put("clusterrolebindings", meta.Name, &rbacv1.ClusterRoleBinding{ObjectMeta: meta,
		Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: name}},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"}})
}

func request(i int) authorizer.Attributes {
	return &authorizer.AttributesRecord{ // the server also passes a pointer
		User: &user.DefaultInfo{Name: fmt.Sprintf("user-%d", i), Groups: []string{"dev", "ops", user.AllAuthenticated}},
		Verb: "get", ResourceRequest: true, Namespace: "default", APIGroup: "example.com", Resource: "crontabs",
		Name: "x",
	}
}

const bindingCount = 10000

// BenchmarkAuthorize measures a decision without changes since the last one, in comparison with upstream's authorizer.
func BenchmarkAuthorize(b *testing.B) {
	fx := newLargeFixture(b, bindingCount)
	a := request(bindingCount / 2)
	authorizers := map[string]authorizer.UnconditionalAuthorizer{"index": fx.index, "upstream": fx.upstream}
	for name, x := range authorizers {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if d, _, _ := x.Authorize(b.Context(), a); d != authorizer.DecisionAllow {
					b.Fatal(d)
				}
			}
		})
	}
}

// BenchmarkAuthorizeAfterWrite measures the first decision after the write of a binding.
func BenchmarkAuthorizeAfterWrite(b *testing.B) {
	fx := newLargeFixture(b, bindingCount)
	a := request(bindingCount / 2)
	fx.checkDecision(a)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		fx.bind(i%(bindingCount/2), fmt.Sprintf("other-%d", i))
		b.StartTimer()
		if d, _, _ := fx.index.Authorize(b.Context(), a); d != authorizer.DecisionAllow {
			b.Fatal(d)
		}
	}
}

// TestDuplicateSubjects checks that duplicate subjects of a binding create one grant. Otherwise the write of one
// binding could block all others for seconds.
func TestDuplicateSubjects(t *testing.T) {
	fx := newFixture(t)
	fx.put("roles", "n1/a", &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "n1"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	})
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "n1"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "a"},
	}
	for range 100 {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: "User", Name: "a"})
	}
	fx.put("rolebindings", "n1/a", binding)
	a := authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "a"}, Verb: "get", ResourceRequest: true, Namespace: "n1", Resource: "pods",
	}
	fx.checkDecision(a)
	if n := fx.index.Grants(); n != 1 {
		t.Errorf("got %d grants, want 1", n)
	}
	fx.put("rolebindings", "n1/a", nil)
	fx.checkDecision(a)
	if n := fx.index.Grants(); n != 0 {
		t.Errorf("got %d grants after the deletion of the binding, want 0", n)
	}
}
