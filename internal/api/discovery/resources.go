package discovery

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// subresource describes one subresource of a resource.
type subresource struct {
	name  string
	kind  schema.GroupVersionKind
	verbs []string
}

// subresources returns the subresources of v in upstream's order. Those of built-in kinds are sorted by name.
func subresources(v *resource.Version) []subresource {
	verbs := []string{"get", "patch", "update"}
	var subs []subresource
	if v.Status {
		subs = append(subs, subresource{"status", v.GroupVersionKind(), verbs})
	}
	if v.Scale != nil {
		scale := schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
		subs = append(subs, subresource{"scale", scale, verbs})
	}
	for _, s := range v.Subresources {
		kind := v.GroupVersionKind()
		switch {
		case s.Body != nil:
			kind = s.Body.GroupVersionKind()
		case s.Connect != nil && !s.Connect.Reads:
			kind = s.Connect.Options.GroupVersionKind()
		}
		subs = append(subs, subresource{s.Name, kind, s.Verbs})
	}
	if v.Definition.Custom != nil {
		return subs
	}
	slices.SortFunc(subs, func(a, b subresource) int { return strings.Compare(a.name, b.name) })
	return subs
}

// verbs returns the supported verbs. A custom kind whose CRD is being deleted supports only reads and deletions.
func verbs(d *resource.Definition) []string {
	if d.Terminating {
		return []string{"delete", "deletecollection", "get", "list", "watch"}
	}
	return d.Verbs
}

// storageVersionHash returns kube-apiserver's hash of the storage version: the first eight bytes of a SHA-256 of
// the stored kind. It returns "" if objects are not stored, or if the CRD does not serve its storage version.
func storageVersionHash(d *resource.Definition) string {
	if d.Storage == nil || !d.Stored() || d.Custom != nil && !d.Storage.Served {
		return ""
	}
	gv := d.Storage.GroupVersion
	sum := sha256.Sum256([]byte(gv.Group + "/" + gv.Version + "/" + d.Names.Kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

// apiResources returns v and its subresources for an APIResourceList.
func apiResources(v *resource.Version) []metav1.APIResource {
	d := v.Definition
	out := []metav1.APIResource{{
		Name:         d.Names.Plural,
		SingularName: d.Names.Singular,
		Namespaced:   d.Namespaced,
		Kind:         d.Names.Kind,
		Verbs:        verbs(d),
		ShortNames:   d.Names.ShortNames,
		Categories:   d.Names.Categories,

		StorageVersionHash: storageVersionHash(d),
	}}
	for _, s := range subresources(v) {
		r := metav1.APIResource{
			Name:       d.Names.Plural + "/" + s.name,
			Namespaced: d.Namespaced,
			Kind:       s.kind.Kind,
			Verbs:      s.verbs,
		}
		if s.kind.GroupVersion() != v.GroupVersion {
			r.Group, r.Version = s.kind.Group, s.kind.Version
		}
		out = append(out, r)
	}
	return out
}

// resourceDiscovery returns v and its subresources for aggregated discovery.
func resourceDiscovery(v *resource.Version) apidiscoveryv2.APIResourceDiscovery {
	d := v.Definition
	out := apidiscoveryv2.APIResourceDiscovery{
		Resource:         d.Names.Plural,
		SingularResource: d.Names.Singular,
		Scope:            apidiscoveryv2.ScopeCluster,
		ResponseKind:     responseKind(v, v.GroupVersionKind()),
		Verbs:            verbs(d),
		ShortNames:       d.Names.ShortNames,
		Categories:       d.Names.Categories,
	}
	if d.Namespaced {
		out.Scope = apidiscoveryv2.ScopeNamespace
	}
	for _, s := range subresources(v) {
		out.Subresources = append(out.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource:  s.name,
			ResponseKind: responseKind(v, s.kind),
			Verbs:        s.verbs,
		})
	}
	return out
}

// responseKind returns the kind of the objects in a response. As in upstream's documents, group and version are
// empty if a built-in kind has the group and version of the resource. Clients then use those of the resource.
func responseKind(v *resource.Version, k schema.GroupVersionKind) *metav1.GroupVersionKind {
	if v.Definition.Custom == nil && k.GroupVersion() == v.GroupVersion {
		return &metav1.GroupVersionKind{Kind: k.Kind}
	}
	return &metav1.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Kind}
}
