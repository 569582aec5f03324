package webhook

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	v1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission/plugin/webhook"
	"k8s.io/utils/ptr"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/egress/credentials"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// configurationKind are a kind of them: where they are stored, and what is in one.
type configurationKind struct {
	prefix string
	decode   func(json []byte) ([]webhook.WebhookAccessor, error)
}

var mutatingConfigurations = configurationKind{"/registry/mutatingwebhookconfigurations/", func(text []byte) (all []webhook.WebhookAccessor, err error) {
	var c v1.MutatingWebhookConfiguration
	err = json.Unmarshal(text, &c)
	for i := range c.Webhooks {
		all = append(all, webhook.NewMutatingWebhookAccessor(c.Name+"/"+strconv.Itoa(i), c.Name, &c.Webhooks[i]))
	}
	return all, err
}}

var validatingConfigurations = configurationKind{"/registry/validatingwebhookconfigurations/", func(text []byte) (all []webhook.WebhookAccessor, err error) {
	var c v1.ValidatingWebhookConfiguration
	err = json.Unmarshal(text, &c)
	for i := range c.Webhooks {
		all = append(all, webhook.NewValidatingWebhookAccessor(c.Name+"/"+strconv.Itoa(i), c.Name, &c.Webhooks[i]))
	}
	return all, err
}}

// index is the webhooks of one kind of configurations at the moment of each question: a write that has been answered is in force.
type index struct {
	configurations configurationKind
	storage.Follower
	clients     *clientPool
	credentials *credentials.Source // of calls; set before the first request
	hooks       atomic.Pointer[byResource]

	byKey   map[string][]*hook                 // of a configuration, by storage key
	replaceFunc    func(was, is *storage.Record) bool // replace, made once: nothing is allocated where nothing has changed
	changed bool                               // since advance began
}

// byResource is the webhooks whose rules name a resource, and those whose rules name any, in their order.
type byResource struct {
	named map[string][]*hook // with those that name any
	wildcard   []*hook
}

func newIndex(of configurationKind, head func() *storage.Snapshot, callers *clientPool) *index {
	x := &index{configurations: of, clients: callers, byKey: map[string][]*hook{}}
	x.replaceFunc = x.replace
	x.Head, x.Advance = head, x.advance
	x.hooks.Store(&byResource{})
	return x
}

// candidates returns the webhooks that have something to say about a resource, whatever its group and the operation. As upstream has it,
// they hear neither of what they are configured by nor of questions who somebody is and what he may do, by which a cluster would be
// locked up.
func (x *index) candidates(r *admission.Request) []*hook {
	if r.Resource.Group == v1.GroupName || r.Target.Definition.Behavior.Review != nil {
		return nil
	}
	x.Refresh()
	hooks := x.hooks.Load()
	if named, ok := hooks.named[r.Resource.Resource]; ok {
		return named
	}
	return hooks.wildcard
}

func (x *index) advance(seen, head *storage.Snapshot) {
	x.changed = false
	head.Since(seen, x.configurations.prefix)(x.replaceFunc)
	if x.changed {
		x.hooks.Store(x.rebuild())
	}
}

func (x *index) replace(was, is *storage.Record) bool {
	x.changed = true
	var fresh []*hook
	if is != nil {
		all, _ := x.configurations.decode(is.Value) // what cannot be read has been refused
		for _, a := range all {
			fresh = append(fresh, &hook{
				WebhookAccessor: a, rules: a.GetRules(), client: x.clients.acquire(a.GetClientConfig(), x.credentials),
				equivalent: ptr.Deref(a.GetMatchPolicy(), v1.Exact) == v1.Equivalent,
			})
		}
	}
	if was != nil {
		for _, h := range x.byKey[was.Key] {
			x.clients.release(h.client) // after the others have been taken: what stays as it is keeps its connections
		}
		delete(x.byKey, was.Key)
	}
	if is != nil {
		x.byKey[is.Key] = fresh
	}
	return true
}

// rebuild makes byResource of what is known, in the order of the configurations' names.
func (x *index) rebuild() *byResource {
	out := &byResource{named: map[string][]*hook{}}
	var all []*hook
	for _, key := range slices.Sorted(maps.Keys(x.byKey)) {
		for _, h := range x.byKey[key] {
			h = &hook{h.WebhookAccessor, h.rules, h.equivalent, len(all), h.client}
			all = append(all, h)
			h.resources(func(plural string) { out.named[plural] = nil })
		}
	}
	delete(out.named, "*")
	for _, h := range all {
		about := map[string]bool{}
		h.resources(func(plural string) { about[plural] = true })
		if about["*"] {
			out.wildcard = append(out.wildcard, h)
		}
		for plural := range out.named {
			if about["*"] || about[plural] {
				out.named[plural] = append(out.named[plural], h)
			}
		}
	}
	return out
}

// hook is a webhook.
type hook struct {
	webhook.WebhookAccessor
	rules      []v1.RuleWithOperations
	equivalent bool // it hears of other versions and groups of its resources
	position      int  // among all
	client     *pooledClient
}

// resources yields the resources of its rules.
func (h *hook) resources(yield func(plural string)) {
	for i := range h.rules {
		for _, r := range h.rules[i].Resources {
			plural, _, _ := strings.Cut(r, "/")
			yield(plural)
		}
	}
}

// mayMatch says whether one of its rules may be about a request. It is asked about every write, and costs no allocation.
func (h *hook) mayMatch(r *admission.Request) bool {
	for i := range h.rules {
		rule := &h.rules[i]
		if h.matchesOperation(rule, r.Operation) && h.matchesResource(rule, r) && h.matchesGroup(rule, r.Target) {
			return true
		}
	}
	return false
}

func (h *hook) matchesOperation(rule *v1.RuleWithOperations, op admission.Operation) bool {
	for _, o := range rule.Operations {
		if o == v1.OperationAll || string(o) == string(op) {
			return true
		}
	}
	return false
}

func (h *hook) matchesResource(rule *v1.RuleWithOperations, r *admission.Request) bool {
	for _, name := range rule.Resources {
		plural, sub, _ := strings.Cut(name, "/")
		if (plural == "*" || plural == r.Resource.Resource) && (sub == "*" || sub == r.Subresource) {
			return true
		}
	}
	return false
}

func (h *hook) matchesGroup(rule *v1.RuleWithOperations, target *resource.Version) bool {
	for _, group := range rule.APIGroups {
		if group == "*" || group == target.GroupVersion.Group {
			return true
		}
		if !h.equivalent {
			continue
		}
		for _, v := range target.Definition.Versions {
			if group == v.GroupVersion.Group {
				return true
			}
		}
	}
	return false
}
