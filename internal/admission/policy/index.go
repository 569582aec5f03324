package policy

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission/plugin/policy/generic"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// index finds the policies that may match a write, in the latest state of the store. A write of a policy is in force as
// soon as it has returned. P is the type of policies, B the type of bindings, and E the type of compiled policies.
type index[P, B runtime.Object, E any] struct {
	storage.Follower
	policies, bindings string // prefixes of storage keys
	newPolicy          func() P
	newBinding         func() B
	policy             func(P) generic.PolicyAccessor
	binding            func(B) generic.BindingAccessor
	compile            func(P) E

	byOperation atomic.Pointer[map[operation][]*entry[P, B, E]]

	entries     map[string]*entry[P, B, E] // by storage key of the policy
	allBindings map[string]B               // by storage key
}

func newValidating(c Config) *index[*validating.Policy, *validating.PolicyBinding, validating.Validator] {
	return newIndex(&index[*validating.Policy, *validating.PolicyBinding, validating.Validator]{
		Follower: storage.Follower{Head: c.Head},
		policies: "/registry/validatingadmissionpolicies/", bindings: "/registry/validatingadmissionpolicybindings/",
		newPolicy:  func() *validating.Policy { return &validating.Policy{} },
		newBinding: func() *validating.PolicyBinding { return &validating.PolicyBinding{} },
		policy:     validating.NewValidatingAdmissionPolicyAccessor,
		binding:    validating.NewValidatingAdmissionPolicyBindingAccessor,
		compile:    compileValidating,
	})
}

func newMutating(c Config) *index[*mutating.Policy, *mutating.PolicyBinding, mutating.PolicyEvaluator] {
	return newIndex(&index[*mutating.Policy, *mutating.PolicyBinding, mutating.PolicyEvaluator]{
		Follower: storage.Follower{Head: c.Head},
		policies: "/registry/mutatingadmissionpolicies/", bindings: "/registry/mutatingadmissionpolicybindings/",
		newPolicy:  func() *mutating.Policy { return &mutating.Policy{} },
		newBinding: func() *mutating.PolicyBinding { return &mutating.PolicyBinding{} },
		policy:     mutating.NewMutatingAdmissionPolicyAccessor,
		binding:    mutating.NewMutatingAdmissionPolicyBindingAccessor,
		compile:    compileMutating,
	})
}

func newIndex[P, B runtime.Object, E any](x *index[P, B, E]) *index[P, B, E] {
	x.entries, x.allBindings = map[string]*entry[P, B, E]{}, map[string]B{}
	x.Advance = x.advance
	x.byOperation.Store(&map[operation][]*entry[P, B, E]{})
	return x
}

// operation is a resource and an operation in a rule. The resource "*" means all resources.
type operation struct {
	resource string
	op       admissionregistrationv1.OperationType
}

// entry is a policy with its bindings, sorted by name.
type entry[P, B runtime.Object, E any] struct {
	name      string
	policy    P
	bindings  []B
	rules     []admissionregistrationv1.NamedRuleWithOperations
	evaluator func() E // compiles the policy at the first call
}

// mayMatch reports whether any policy may match r.
func (x *index[P, B, E]) mayMatch(r *admission.Request) bool {
	x.Refresh()
	byOp := *x.byOperation.Load()
	if len(byOp) == 0 {
		return false
	}
	op := admissionregistrationv1.OperationType(r.Operation)
	matches := func(e *entry[P, B, E]) bool { return e.mayMatch(r) }
	return slices.ContainsFunc(byOp[operation{r.Resource.Resource, op}], matches) ||
		slices.ContainsFunc(byOp[operation{"*", op}], matches)
}

// hooks returns the policies that may match r, sorted by name. It passes each policy through the function complete.
func (x *index[P, B, E]) hooks(
	ctx context.Context, r *admission.Request,
	complete func(context.Context, generic.PolicyHook[P, B, E]) generic.PolicyHook[P, B, E],
) (all []generic.PolicyHook[P, B, E]) {
	byOp, op := *x.byOperation.Load(), admissionregistrationv1.OperationType(r.Operation)
	var found []*entry[P, B, E]
	for _, name := range []string{r.Resource.Resource, "*"} {
		for _, e := range byOp[operation{name, op}] {
			if e.mayMatch(r) {
				found = append(found, e)
			}
		}
	}
	slices.SortFunc(found, func(a, b *entry[P, B, E]) int { return strings.Compare(a.name, b.name) })
	for _, e := range slices.Compact(found) {
		all = append(all, complete(ctx, generic.PolicyHook[P, B, E]{
			Policy: e.policy, Bindings: e.bindings, Evaluator: e.evaluator(),
		}))
	}
	return all
}

// mayMatch reports whether the group and the resource of a rule match. Upstream's matcher evaluates versions, scopes,
// names and selectors.
func (e *entry[P, B, E]) mayMatch(r *admission.Request) bool {
	for i := range e.rules {
		rule := &e.rules[i]
		if matchesGroup(rule.APIGroups, r) && slices.ContainsFunc(rule.Resources, func(name string) bool {
			resource, sub, _ := strings.Cut(name, "/")
			return (resource == "*" || resource == r.Resource.Resource) && (sub == "*" || sub == r.Subresource)
		}) {
			return true
		}
	}
	return false
}

// matchesGroup reports whether groups contains the group of the request, or another group of the same kind.
func matchesGroup(groups []string, r *admission.Request) bool {
	for _, g := range groups {
		if g == "*" || g == r.Resource.Group {
			return true
		}
		for _, v := range r.Version.Definition.Versions {
			if v.GroupVersion.Group == g {
				return true
			}
		}
	}
	return false
}

func (x *index[P, B, E]) advance(seen, head *storage.Snapshot) {
	changed := false
	for oldRec, newRec := range head.Since(seen, x.policies) {
		x.replacePolicy(oldRec, newRec)
		changed = true
	}
	for oldRec, newRec := range head.Since(seen, x.bindings) {
		x.replaceBinding(oldRec, newRec)
		changed = true
	}
	if changed {
		x.rebuild()
	}
}

func (x *index[P, B, E]) replacePolicy(oldRec, newRec *storage.Record) {
	if oldRec != nil {
		delete(x.entries, oldRec.Key)
	}
	if newRec == nil {
		return
	}
	p := x.newPolicy()
	if err := kjson.UnmarshalCaseSensitivePreserveInts(newRec.Value, p); err != nil {
		return // an undecodable policy is ignored
	}
	e := &entry[P, B, E]{
		name: x.policy(p).GetName(), policy: p, evaluator: sync.OnceValue(func() E { return x.compile(p) }),
	}
	if m := x.policy(p).GetMatchConstraints(); m != nil {
		e.rules = m.ResourceRules
	}
	x.entries[newRec.Key] = e
}

func (x *index[P, B, E]) replaceBinding(oldRec, newRec *storage.Record) {
	if oldRec != nil {
		delete(x.allBindings, oldRec.Key)
	}
	if newRec == nil {
		return
	}
	b := x.newBinding()
	if err := kjson.UnmarshalCaseSensitivePreserveInts(newRec.Value, b); err == nil {
		x.allBindings[newRec.Key] = b
	}
}

// rebuild replaces byOperation by a new map of the policies that have bindings. Readers may still use the previous map.
func (x *index[P, B, E]) rebuild() {
	bound := map[string][]B{}
	for _, b := range x.allBindings {
		key := x.policies + x.binding(b).GetPolicyName().Name
		bound[key] = append(bound[key], b)
	}
	byOp := map[operation][]*entry[P, B, E]{}
	for key, bindings := range bound {
		unbound := x.entries[key]
		if unbound == nil {
			continue
		}
		slices.SortFunc(bindings, func(a, b B) int {
			return strings.Compare(x.binding(a).GetName(), x.binding(b).GetName())
		})
		e := *unbound
		e.bindings = bindings
		for _, at := range e.operations() {
			byOp[at] = append(byOp[at], &e)
		}
	}
	x.byOperation.Store(&byOp)
}

// operations returns the resources and operations in the rules, without duplicates.
func (e *entry[P, B, E]) operations() (all []operation) {
	for _, rule := range e.rules {
		ops := rule.Operations
		if slices.Contains(ops, admissionregistrationv1.OperationAll) {
			ops = []admissionregistrationv1.OperationType{
				admissionregistrationv1.Create, admissionregistrationv1.Update,
				admissionregistrationv1.Delete, admissionregistrationv1.Connect,
			}
		}
		for _, name := range rule.Resources {
			name, _, _ = strings.Cut(name, "/")
			for _, op := range ops {
				if at := (operation{name, op}); !slices.Contains(all, at) {
					all = append(all, at)
				}
			}
		}
	}
	return all
}
