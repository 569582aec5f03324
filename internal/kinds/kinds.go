// Package kinds is the table of built-in kinds: those of a cluster as k8s.io/kubernetes defines them, by Go types,
// defaults, conversions and strategies, and the kind that defines kinds, which is Trellis' own. It serves nothing.
//
// Three things that come with k8s.io/kubernetes are one for the whole process, however many servers run in it:
// the scheme (legacyscheme, filled when the program starts and never changed), the feature gates (a gate that is
// set is set for every server, so this package never sets one), and the registry of upstream's metrics (counts of
// all servers are added up there; Trellis does not serve it). All else is per call of Definitions.
package kinds

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/pkg/serviceaccount"
	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Config is what the built-in kinds need from outside. The zero Config allows nothing, and knows of no other object.
type Config struct {
	// Catalog returns a catalog that knows all that is stored: CRDs cannot be written without it.
	Catalog  func(context.Context) (*resource.Catalog, error)
	EventTTL time.Duration // how long an Event lives after it was last written; 0: forever
	// Head returns what is stored, for kinds that look at other objects; nil: there are none.
	Head func() *storage.Snapshot
	// ServiceRanges is where Services get their cluster IPs from until there is a ServiceCIDR DefaultServiceCIDR, and says of
	// which families those are, the first being the default; nil: DefaultServiceRange.
	ServiceRanges []netip.Prefix
	NodePorts     utilnet.PortRange // of Services; zero: DefaultNodePorts
	// UnguardedBindings lets Pods be bound to nodes that have no room for them.
	UnguardedBindings bool
	// AllowPrivileged accepts Pods with privileged containers, or hostProcess containers of Windows.
	AllowPrivileged bool
	// NoFieldSelectors drops selectableFields from CRDs that had none before.
	NoFieldSelectors bool
	Now              func() time.Time // nil: time.Now
	// Authorizer answers access reviews, and says whether the writer of a policy may read its parameters, the writer of a
	// claim may use a device, and the writer of a certificate may sign. nil: nobody may do anything.
	Authorizer authorizer.UnconditionalAuthorizer
	// Rules lists what somebody may do in a namespace; nil: the list is said to be incomplete.
	Rules authorizer.RuleResolver
	// RoleRules resolves the rules of roles, for who gives rights away; nil: nobody has any.
	RoleRules validation.AuthorizationRuleResolver
	// Authenticator answers TokenReviews, for Audiences unless they say others; nil: no token is known.
	Authenticator authenticator.Request
	// Issuer makes the tokens of service accounts, for Audiences unless others are asked for; nil: there are none. No token is
	// good for longer than MaxTokenExpiration, unless that is 0.
	Issuer             serviceaccount.TokenGenerator
	Audiences          authenticator.Audiences
	MaxTokenExpiration time.Duration
	// StorageHealth returns nil while the store accepts writes, for the ComponentStatus etcd-0; nil: it always does.
	StorageHealth func() error
	// Enabled says which resources are served, as Enablement makes it; nil: all.
	Enabled func(schema.GroupVersionResource) bool
}

// Definitions returns every built-in kind. What is costly is derived on first use.
func Definitions(c Config) []*resource.Definition {
	c = c.withDefaults()
	all := []*resource.Definition{customResourceDefinitions(c), legacyBindings()}
	for _, lines := range [][]entry{coreKinds(c), workloads(), cluster(c), aggregation(), policies(c), devices(c), reviews(c)} {
		for i := range lines {
			if c.AllowPrivileged {
				lines[i].ignoreError = isPrivilegedError
			}
			all = append(all, lines[i].define())
		}
	}
	for _, d := range all {
		for _, v := range d.Versions {
			v.Served = v.Served && (c.Enabled == nil || c.Enabled(v.GroupVersion.WithResource(d.Names.Plural)))
		}
	}
	return all
}

// withDefaults fills in what c leaves out: strategies call all of it without looking.
func (c Config) withDefaults() Config {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Authorizer == nil {
		c.Authorizer = denyAll{}
	}
	if c.Rules == nil {
		c.Rules = denyAll{}
	}
	if c.Authenticator == nil {
		c.Authenticator = denyAll{}
	}
	if c.RoleRules == nil {
		c.RoleRules, _ = validation.NewTestRuleResolver(nil, nil, nil, nil)
	}
	return c
}

// passiveClock is the clock that strategies are given.
type passiveClock struct{ now func() time.Time }

// Now implements clock.PassiveClock.
func (p passiveClock) Now() time.Time { return p.now() }

// Since implements clock.PassiveClock.
func (p passiveClock) Since(t time.Time) time.Duration { return p.now().Sub(t) }

var _ clock.PassiveClock = passiveClock{}

// resourceFor finds the resource that serves a kind.
func (c Config) resourceFor(gvk schema.GroupVersionKind) (schema.GroupVersionResource, error) {
	unknown := &meta.NoKindMatchError{GroupKind: gvk.GroupKind(), SearchedVersions: []string{gvk.Version}}
	if c.Catalog == nil {
		return schema.GroupVersionResource{}, unknown
	}
	catalog, err := c.Catalog(context.Background())
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	for d := range catalog.Definitions() {
		for _, v := range d.Versions {
			if v.Served && v.GroupVersionKind() == gvk {
				return v.GroupVersion.WithResource(d.Names.Plural), nil
			}
		}
	}
	return schema.GroupVersionResource{}, unknown
}

// denyAll may do anything.
type denyAll struct{}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (denyAll) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", nil
}

// RulesFor implements authorizer.RuleResolver.
func (denyAll) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return nil, nil, true, nil
}

// AuthenticateRequest implements authenticator.Request.
func (denyAll) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	return nil, false, nil
}
