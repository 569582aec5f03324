package aggregation

import (
	"crypto/sha256"
	"encoding/json"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxResources limits the number of resources of a group version, because each response to a discovery request
// contains them all.
const maxResources = 10_000

// storeResources stores a resource list. If the list is invalid, it keeps the previous resources, and the API server
// still counts as available.
func (b *backend) storeResources(list []byte) {
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

// setFreshness marks the known resources as current or stale.
func (b *backend) setFreshness(available bool) {
	freshness := apidiscoveryv2.DiscoveryFreshnessStale
	if available {
		freshness = apidiscoveryv2.DiscoveryFreshnessCurrent
	}
	last := b.resources.Load()
	if last == nil {
		last = b.discovery(nil)
	}
	if last.Freshness != freshness {
		next := *last
		next.Freshness = freshness
		b.resources.Store(&next)
	}
}

// discovery converts a resource list to the format of aggregated discovery (KEP-3352), in which a resource contains
// its subresources.
func (b *backend) discovery(list []metav1.APIResource) *apidiscoveryv2.APIVersionDiscovery {
	out := &apidiscoveryv2.APIVersionDiscovery{Version: b.service.GroupVersion.Version,
		Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	indices := map[string]int{}
	for _, r := range list {
		kind := b.kind(&r)
		name, subresource, isSub := strings.Cut(r.Name, "/")
		if !isSub {
			indices[name] = len(out.Resources)
			out.Resources = append(out.Resources, apidiscoveryv2.APIResourceDiscovery{
				Resource: name, ResponseKind: kind, Scope: scope(&r), SingularResource: r.SingularName, Verbs: r.Verbs,
				ShortNames: r.ShortNames, Categories: r.Categories,
			})
			continue
		}
		i, ok := indices[name]
		if !ok { // the list contains only subresources of this resource
			i = len(out.Resources)
			indices[name] = i
			out.Resources = append(out.Resources, apidiscoveryv2.APIResourceDiscovery{Resource: name,
				ResponseKind: &metav1.GroupVersionKind{}, Scope: scope(&r)})
		}
		parent := &out.Resources[i]
		parent.Subresources = append(parent.Subresources,
			apidiscoveryv2.APISubresourceDiscovery{Subresource: subresource, ResponseKind: kind, Verbs: r.Verbs})
	}
	return out
}

// kind returns the kind of a resource's responses. A kind without group and version is in the group version of the
// backend.
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
