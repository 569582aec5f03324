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

// configurations are a kind of them: where they are stored, and what is in one.
type configurations struct {
	prefix string
	read   func(json []byte) ([]webhook.WebhookAccessor, error)
}

var mutatingConfigurations = configurations{"/registry/mutatingwebhookconfigurations/", func(text []byte) (all []webhook.WebhookAccessor, err error) {
	var c v1.MutatingWebhookConfiguration
	err = json.Unmarshal(text, &c)
	for i := range c.Webhooks {
		all = append(all, webhook.NewMutatingWebhookAccessor(c.Name+"/"+strconv.Itoa(i), c.Name, &c.Webhooks[i]))
	}
	return all, err
}}

var validatingConfigurations = configurations{"/registry/validatingwebhookconfigurations/", func(text []byte) (all []webhook.WebhookAccessor, err error) {
	var c v1.ValidatingWebhookConfiguration
	err = json.Unmarshal(text, &c)
	for i := range c.Webhooks {
		all = append(all, webhook.NewValidatingWebhookAccessor(c.Name+"/"+strconv.Itoa(i), c.Name, &c.Webhooks[i]))
	}
	return all, err
}}

// index is the webhooks of one kind of configurations at the moment of each question: a write that has been answered is in force.
type index struct {
	of configurations
	storage.Follower
	callers     *callers
	credentials *credentials.Source // of calls; set before the first request
	hooks       atomic.Pointer[byResource]

	known   map[string][]*hook                 // of a configuration, by storage key
	read    func(was, is *storage.Record) bool // replace, made once: nothing is allocated where nothing has changed
	changed bool                               // since advance began
}

// byResource is the webhooks whose rules name a resource, and those whose rules name any, in their order.
type byResource struct {
	named map[string][]*hook // with those that name any
	any   []*hook
}

func newIndex(of configurations, head func() *storage.Snapshot, callers *callers) *index {
	x := &index{of: of, callers: callers, known: map[string][]*hook{}}
	x.read = x.replace
	x.Head, x.Advance = head, x.advance
	x.hooks.Store(&byResource{})
	return x
}

// about returns the webhooks that have something to say about a resource, whatever its group and the operation. As upstream has it,
// they hear neither of what they are configured by nor of questions who somebody is and what he may do, by which a cluster would be
// locked up.
func (x *index) about(r *admission.Request) []*hook {
	if r.Resource.Group == v1.GroupName || r.Target.Definition.Behavior.Review != nil {
		return nil
	}
	x.Refresh()
	hooks := x.hooks.Load()
	if named, ok := hooks.named[r.Resource.Resource]; ok {
		return named
	}
	return hooks.any
}

func (x *index) advance(seen, head *storage.Snapshot) {
	x.changed = false
	head.Since(seen, x.of.prefix)(x.read)
	if x.changed {
		x.hooks.Store(x.arrange())
	}
}

func (x *index) replace(was, is *storage.Record) bool {
	x.changed = true
	var fresh []*hook
	if is != nil {
		all, _ := x.of.read(is.Value) // what cannot be read has been refused
		for _, a := range all {
			fresh = append(fresh, &hook{
				WebhookAccessor: a, rules: a.GetRules(), caller: x.callers.take(a.GetClientConfig(), x.credentials),
				equivalent: ptr.Deref(a.GetMatchPolicy(), v1.Exact) == v1.Equivalent,
			})
		}
	}
	if was != nil {
		for _, h := range x.known[was.Key] {
			x.callers.leave(h.caller) // after the others have been taken: what stays as it is keeps its connections
		}
		delete(x.known, was.Key)
	}
	if is != nil {
		x.known[is.Key] = fresh
	}
	return true
}

// arrange makes byResource of what is known, in the order of the configurations' names.
func (x *index) arrange() *byResource {
	out := &byResource{named: map[string][]*hook{}}
	var all []*hook
	for _, key := range slices.Sorted(maps.Keys(x.known)) {
		for _, h := range x.known[key] {
			h = &hook{h.WebhookAccessor, h.rules, h.equivalent, len(all), h.caller}
			all = append(all, h)
			h.names(func(plural string) { out.named[plural] = nil })
		}
	}
	delete(out.named, "*")
	for _, h := range all {
		about := map[string]bool{}
		h.names(func(plural string) { about[plural] = true })
		if about["*"] {
			out.any = append(out.any, h)
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
	place      int  // among all
	caller     *caller
}

// names yields the resources of its rules.
func (h *hook) names(yield func(plural string)) {
	for i := range h.rules {
		for _, r := range h.rules[i].Resources {
			plural, _, _ := strings.Cut(r, "/")
			yield(plural)
		}
	}
}

// wants says whether one of its rules may be about a request. It is asked about every write, and costs no allocation.
func (h *hook) wants(r *admission.Request) bool {
	for i := range h.rules {
		rule := &h.rules[i]
		if h.operates(rule, r.Operation) && h.resource(rule, r) && h.group(rule, r.Target) {
			return true
		}
	}
	return false
}

func (h *hook) operates(rule *v1.RuleWithOperations, op admission.Operation) bool {
	for _, o := range rule.Operations {
		if o == v1.OperationAll || string(o) == string(op) {
			return true
		}
	}
	return false
}

func (h *hook) resource(rule *v1.RuleWithOperations, r *admission.Request) bool {
	for _, name := range rule.Resources {
		plural, sub, _ := strings.Cut(name, "/")
		if (plural == "*" || plural == r.Resource.Resource) && (sub == "*" || sub == r.Subresource) {
			return true
		}
	}
	return false
}

func (h *hook) group(rule *v1.RuleWithOperations, target *resource.Version) bool {
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
