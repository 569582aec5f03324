package aggregation

import (
	"crypto/sha256"
	"encoding/json"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxResources is how many a group version may have: everybody who asks for discovery gets them.
const maxResources = 10_000

// describe stores a resource list as the resources that are served. It keeps the last list if this one cannot be read: the API
// server is available all the same.
func (b *backend) describe(list []byte) {
	hash := sha256.Sum256(list)
	var all metav1.APIResourceList
	if hash == b.list {
		return
	}
	if json.Unmarshal(list, &all) != nil || len(all.APIResources) > maxResources {
		b.listed.Store(false)
		return
	}
	b.list = hash
	b.resources.Store(b.discovery(all.APIResources))
	b.listed.Store(true)
}

// freshen marks what is known of the resources as current, or as out of date.
func (b *backend) freshen(available bool) {
	is := apidiscoveryv2.DiscoveryFreshnessStale
	if available {
		is = apidiscoveryv2.DiscoveryFreshnessCurrent
	}
	last := b.resources.Load()
	if last == nil {
		last = b.discovery(nil)
	}
	if last.Freshness != is {
		next := *last
		next.Freshness = is
		b.resources.Store(&next)
	}
}

// discovery is a resource list in the form of aggregated discovery (KEP-3352), where subresources are within their resources.
func (b *backend) discovery(list []metav1.APIResource) *apidiscoveryv2.APIVersionDiscovery {
	out := &apidiscoveryv2.APIVersionDiscovery{Version: b.service.GroupVersion.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	places := map[string]int{}
	for _, r := range list {
		kind := b.kind(&r)
		name, subresource, isSub := strings.Cut(r.Name, "/")
		if !isSub {
			places[name] = len(out.Resources)
			out.Resources = append(out.Resources, apidiscoveryv2.APIResourceDiscovery{
				Resource: name, ResponseKind: kind, Scope: scope(&r), SingularResource: r.SingularName, Verbs: r.Verbs,
				ShortNames: r.ShortNames, Categories: r.Categories,
			})
			continue
		}
		at, ok := places[name]
		if !ok { // a resource that has nothing but subresources
			at = len(out.Resources)
			places[name] = at
			out.Resources = append(out.Resources, apidiscoveryv2.APIResourceDiscovery{Resource: name, ResponseKind: &metav1.GroupVersionKind{}, Scope: scope(&r)})
		}
		parent := &out.Resources[at]
		parent.Subresources = append(parent.Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: subresource, ResponseKind: kind, Verbs: r.Verbs})
	}
	return out
}

// kind is what a resource answers with: of the same group version, unless it says another.
func (b *backend) kind(r *metav1.APIResource) *metav1.GroupVersionKind {
	k := &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
	if k.Group == "" && k.Version == "" {
		k.Group, k.Version = b.service.GroupVersion.Group, b.service.GroupVersion.Version
	}
	return k
}

func scope(r *metav1.APIResource) apidiscoveryv2.ResourceScope {
	if r.Namespaced {
		return apidiscoveryv2.ScopeNamespace
	}
	return apidiscoveryv2.ScopeCluster
}
