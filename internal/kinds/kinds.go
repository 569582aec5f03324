// Package kinds defines the built-in kinds. The kinds of a cluster use the Go types, defaults, conversions and
// strategies of k8s.io/kubernetes. CustomResourceDefinition is Trellis' own implementation. The package serves no
// requests.
//
// Three parts of k8s.io/kubernetes are global, so all servers in a process share them:
//   - The scheme (legacyscheme) is filled when the program starts and never changed.
//   - The feature gates. This package never sets one, because that would affect every server.
//   - The registry of upstream's metrics, which adds up the counts of all servers. Trellis does not serve it.
//
// All other state belongs to one call of Definitions.
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

	"github.com/trellis-k8s/trellis/internal/kinds/crd"
	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/kinds/pods"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Config holds the dependencies and settings of the built-in kinds. With the zero Config, no request is authorized
// and no other objects exist.
type Config struct {
	// Catalog returns a catalog of all stored kinds. nil means that writes of CRDs fail.
	Catalog  func(context.Context) (*catalog.Catalog, error)
	EventTTL time.Duration // lifetime of an Event after its last write; 0 means unlimited
	// Head returns the stored objects, because some kinds depend on other objects. nil means that no objects are
	// stored.
	Head func() *storage.Snapshot
	// ServiceRanges are the ranges for cluster IPs of Services until the ServiceCIDR named services.DefaultCIDR exists.
	// Their IP families are the families of the cluster, and the family of the first range is the default. nil means
	// services.DefaultRange.
	ServiceRanges []netip.Prefix
	NodePorts     utilnet.PortRange // node ports of Services; the zero value means services.DefaultNodePorts
	// UnguardedBindings disables the check of the capacity of a node when a Pod is bound to it.
	UnguardedBindings bool
	// AllowPrivileged accepts Pods with privileged containers and with Windows hostProcess containers.
	AllowPrivileged bool
	// NoFieldSelectors drops selectableFields from CRDs, except in an update of a CRD that already has some.
	NoFieldSelectors bool
	Now              func() time.Time // nil means time.Now
	// Authorizer evaluates access reviews. It also authorizes users who write a policy to read its parameters, users
	// who write a claim to use a device, and users who write a certificate to sign. nil denies everything.
	Authorizer authorizer.UnconditionalAuthorizer
	// Rules lists the permissions of a user in a namespace. nil means that each list is empty and marked as incomplete.
	Rules authorizer.RuleResolver
	// RoleRules resolves the rules of roles, for the check against privilege escalation. nil means that no roles
	// exist.
	RoleRules validation.AuthorizationRuleResolver
	// Authenticator authenticates the tokens in TokenReviews. A review that specifies no audiences is for Audiences.
	// nil means that no token is authenticated.
	Authenticator authenticator.Request
	// Issuer issues the tokens of service accounts. A request that specifies no audiences is for Audiences. nil
	// disables TokenRequests. MaxTokenExpiration limits the lifetime of each token, and 0 means no limit.
	Issuer             serviceaccount.TokenGenerator
	Audiences          authenticator.Audiences
	MaxTokenExpiration time.Duration
	// StorageHealth returns an error if the store does not accept writes. The ComponentStatus etcd-0 reports this
	// error. nil means that this ComponentStatus is always healthy.
	StorageHealth func() error
	// Enabled reports whether a resource is served. ParseRuntimeConfig creates this function. nil means that all
	// resources are served.
	Enabled func(schema.GroupVersionResource) bool
}

// Definitions returns the definitions of all built-in kinds. Expensive parts are computed on first use.
func Definitions(c Config) []*resource.Definition {
	c = c.withDefaults()
	all := []*resource.Definition{
		crd.Definition(crd.Config{Catalog: c.Catalog, Now: c.Now, NoFieldSelectors: c.NoFieldSelectors}),
		pods.LegacyBindings(),
	}
	for _, entries := range [][]define.Entry{
		coreKinds(c), workloads(), cluster(c), aggregation(), policies(c), devices(c), reviews(c),
	} {
		for i := range entries {
			if c.AllowPrivileged {
				entries[i].IgnoreError = isPrivilegedError
			}
			all = append(all, entries[i].Definition())
		}
	}
	for _, d := range all {
		d.ItemLimits = limits(d.Names.Kind)
		for _, v := range d.Versions {
			v.Served = v.Served && (c.Enabled == nil || c.Enabled(v.GroupVersion.WithResource(d.Names.Plural)))
		}
	}
	return all
}

// withDefaults returns c with defaults for its nil fields. Strategies can then call these fields without a nil check.
func (c Config) withDefaults() Config {
	if c.Head == nil {
		c.Head, c.UnguardedBindings = func() *storage.Snapshot { return new(storage.Snapshot) }, true
	}
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

// passiveClock is the clock of strategies.
type passiveClock struct{ now func() time.Time }

// Now implements clock.PassiveClock.
func (p passiveClock) Now() time.Time { return p.now() }

// Since implements clock.PassiveClock.
func (p passiveClock) Since(t time.Time) time.Duration { return p.now().Sub(t) }

var _ clock.PassiveClock = passiveClock{}

// resourceFor returns the served resource of a kind.
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

// denyAll is an authorizer, rule resolver and authenticator that denies everything.
type denyAll struct{}

// Authorize implements authorizer.UnconditionalAuthorizer.
func (denyAll) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", nil
}

// RulesFor implements authorizer.RuleResolver.
func (denyAll) RulesFor(
	context.Context, user.Info, string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return nil, nil, true, nil
}

// AuthenticateRequest implements authenticator.Request.
func (denyAll) AuthenticateRequest(*http.Request) (*authenticator.Response, bool, error) {
	return nil, false, nil
}
