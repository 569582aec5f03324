package resource

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/version"
)

// group is the kinds that have an endpoint in one API group. It is immutable once
// it is in a catalog.
type group struct {
	name  string
	kinds byName[*Definition] // plural

	once      sync.Once
	discovers *Group
}

// served is what discovery says of g, nil if g has no served version. It is made when it is first asked for.
func (g *group) served() *Group {
	g.once.Do(func() {
		out := &Group{Name: g.name, Resources: map[string][]*Version{}}
		for _, d := range g.kinds {
			for _, v := range d.is.Versions {
				if v.Served && v.GroupVersion.Group == g.name {
					name := v.GroupVersion.Version
					out.Resources[name] = append(out.Resources[name], v)
				}
			}
		}
		out.Versions = slices.SortedFunc(maps.Keys(out.Resources), func(a, b string) int {
			if c := version.CompareKubeAwareVersionStrings(b, a); c != 0 {
				return c
			}
			return strings.Compare(a, b) // v1 and v01
		})
		if len(out.Versions) > 0 {
			out.Preferred = out.Versions[0]
			g.discovers = out
		}
	})
	return g.discovers
}

// discoveryOrder sorts the names of built-in groups as kube-apiserver's APIServices do by their
// groupPriorityMinimum. The groups of CRDs have 1000 there and come by name.
func discoveryOrder(groups byName[*group]) []string {
	names := make([]string, len(groups))
	for i, g := range groups {
		names[i] = g.name
	}
	slices.SortStableFunc(names, func(a, b string) int { return groupPriority(b) - groupPriority(a) })
	return names
}

// groupPriority is what kube-apiserver registers its groups with.
func groupPriority(name string) int {
	order := []string{
		"", "apiregistration.k8s.io", "extensions", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io", "autoscaling",
		"batch", "certificates.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io", "storage.k8s.io",
		"admissionregistration.k8s.io", "apiextensions.k8s.io", "scheduling.k8s.io", "coordination.k8s.io", "node.k8s.io", "discovery.k8s.io",
		"resource.k8s.io", "flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io", "storagemigration.k8s.io",
	}
	if i := slices.Index(order, name); i >= 0 {
		return 18000 - 100*i
	}
	return 1000
}
