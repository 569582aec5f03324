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

// configurationKind is a kind of webhook configurations: the prefix of their storage keys, and a function that decodes
// a configuration.
type configurationKind struct {
	prefix string
	decode func(json []byte) ([]webhook.WebhookAccessor, error)
}

var mutatingConfigurations = configurationKind{
	"/registry/mutatingwebhookconfigurations/",
	func(text []byte) (all []webhook.WebhookAccessor, err error) {
		var c v1.MutatingWebhookConfiguration
		err = json.Unmarshal(text, &c)
		for i := range c.Webhooks {
			all = append(all, webhook.NewMutatingWebhookAccessor(c.Name+"/"+strconv.Itoa(i), c.Name, &c.Webhooks[i]))
		}
		return all, err
	},
}

var validatingConfigurations = configurationKind{
	"/registry/validatingwebhookconfigurations/",
	func(text []byte) (all []webhook.WebhookAccessor, err error) {
		var c v1.ValidatingWebhookConfiguration
		err = json.Unmarshal(text, &c)
		for i := range c.Webhooks {
			all = append(all, webhook.NewValidatingWebhookAccessor(c.Name+"/"+strconv.Itoa(i), c.Name, &c.Webhooks[i]))
		}
		return all, err
	},
}

// index holds the webhooks in the latest configurations of one kind. A write of a configuration is in force as soon as
// it has returned.
type index struct {
	configurations configurationKind
	storage.Follower
	clients     *clientPool
	credentials *credentials.Source // for calls of webhooks; set before the first request
	hooks       atomic.Pointer[byResource]

	byKey       map[string][]*hook                        // by storage key of the configuration
	replaceFunc func(oldRec, newRec *storage.Record) bool // holds the method replace; avoids an allocation per call
	changed     bool                                      // a configuration has changed since the start of advance
}

// byResource holds the webhooks by the resources in their rules. Each list is in the order of calls.
type byResource struct {
	named    map[string][]*hook // webhooks for a resource, including those in wildcard
	wildcard []*hook            // webhooks for all resources
}

func newIndex(configurations configurationKind, head func() *storage.Snapshot, clients *clientPool) *index {
	x := &index{configurations: configurations, clients: clients, byKey: map[string][]*hook{}}
	x.replaceFunc = x.replace
	x.Head, x.Advance = head, x.advance
	x.hooks.Store(&byResource{})
	return x
}

// candidates returns the webhooks whose rules contain the resource of a request, regardless of group and operation. As
// in upstream, webhooks are not called for webhook configurations or for authentication and authorization reviews. Such
// calls could lock all users out of the cluster.
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

func (x *index) replace(oldRec, newRec *storage.Record) bool {
	x.changed = true
	var hooks []*hook
	if newRec != nil {
		all, _ := x.configurations.decode(newRec.Value) // stored configurations are valid
		for _, a := range all {
			hooks = append(hooks, &hook{
				WebhookAccessor: a, rules: a.GetRules(), client: x.clients.acquire(a.GetClientConfig(), x.credentials),
				equivalent: ptr.Deref(a.GetMatchPolicy(), v1.Exact) == v1.Equivalent,
			})
		}
	}
	if oldRec != nil {
		for _, h := range x.byKey[oldRec.Key] {
			x.clients.release(h.client) // after acquire, so that an unchanged client stays connected
		}
		delete(x.byKey, oldRec.Key)
	}
	if newRec != nil {
		x.byKey[newRec.Key] = hooks
	}
	return true
}

// rebuild returns a byResource of the webhooks in byKey, in the order of the configurations' names.
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
		resources := map[string]bool{}
		h.resources(func(plural string) { resources[plural] = true })
		if resources["*"] {
			out.wildcard = append(out.wildcard, h)
		}
		for plural := range out.named {
			if resources["*"] || resources[plural] {
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
	equivalent bool // matchPolicy is Equivalent: the rules match other versions and groups of the same resources
	position   int  // index in the list of all webhooks
	client     *pooledClient
}

// resources calls yield with each resource in the rules.
func (h *hook) resources(yield func(plural string)) {
	for i := range h.rules {
		for _, r := range h.rules[i].Resources {
			plural, _, _ := strings.Cut(r, "/")
			yield(plural)
		}
	}
}

// mayMatch reports whether one of the rules may match a request. It is called for every write and does not allocate.
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
