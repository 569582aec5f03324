package catalog

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// group holds the kinds that are served in one API group. It is immutable once it is in a catalog.
type group struct {
	name  string
	kinds byName[*resource.Definition] // by plural
	// aggregated holds the versions that other servers serve, by name.
	aggregated []*APIService

	once       sync.Once
	discovered *Group
}

// discovery returns the group for discovery, or nil if the group has no served version. The result is created on
// the first call.
func (g *group) discovery() *Group {
	g.once.Do(func() {
		out := &Group{Name: g.name, Resources: map[string][]*resource.Version{}, Aggregated: g.aggregated}
		priority := map[string]int{} // by version
		for _, d := range g.kinds {
			for _, v := range d.value.Versions {
				name := v.GroupVersion.Version
				if v.Served && v.GroupVersion.Group == g.name && g.aggregatedVersion(name) == nil {
					out.Resources[name] = append(out.Resources[name], v)
					priority[name] = LocalPriority(v.GroupVersion).Version
				}
			}
		}
		for _, s := range g.aggregated {
			priority[s.GroupVersion.Version] = s.VersionPriority
		}
		out.Versions = slices.SortedFunc(maps.Keys(priority), func(a, b string) int {
			if c := cmp.Compare(priority[b], priority[a]); c != 0 {
				return c
			}
			if c := version.CompareKubeAwareVersionStrings(b, a); c != 0 {
				return c
			}
			return strings.Compare(a, b) // orders names such as v1 and v01
		})
		if len(out.Versions) > 0 {
			out.Preferred = out.Versions[0]
			g.discovered = out
		}
	})
	return g.discovered
}

// CustomPriority is the groupPriorityMinimum of the groups of CRDs.
const CustomPriority = 1000

// Priority holds an APIService's priorities of a group in discovery and of a version in the group.
type Priority struct{ Group, Version int }

// LocalPriority returns the priority of a group version that this server serves. The priorities are those of
// kube-apiserver (https://kubernetes.io/docs/reference/kubernetes-api/cluster-resources/api-service-v1/).
func LocalPriority(gv schema.GroupVersion) Priority {
	p := Priority{Group: CustomPriority, Version: 100}
	if priority, ok := priorities[gv.Group]; ok {
		p = priority
	}
	if gv == (schema.GroupVersion{Group: "autoscaling", Version: "v2"}) {
		p.Version = 30
	}
	return p
}

var priorities = map[string]Priority{
	"":                             {18000, 1},
	"apiregistration.k8s.io":       {17950, 15},
	"apps":                         {17800, 15},
	"events.k8s.io":                {17750, 15},
	"authentication.k8s.io":        {17700, 15},
	"authorization.k8s.io":         {17600, 15},
	"autoscaling":                  {17500, 15},
	"batch":                        {17400, 15},
	"certificates.k8s.io":          {17300, 15},
	"networking.k8s.io":            {17200, 15},
	"policy":                       {17100, 15},
	"rbac.authorization.k8s.io":    {17000, 15},
	"storage.k8s.io":               {16800, 15},
	"admissionregistration.k8s.io": {16700, 15},
	"apiextensions.k8s.io":         {16700, 15},
	"scheduling.k8s.io":            {16600, 15},
	"coordination.k8s.io":          {16500, 15},
	"node.k8s.io":                  {16300, 15},
	"discovery.k8s.io":             {16200, 15},
	"resource.k8s.io":              {16200, 21},
	"flowcontrol.apiserver.k8s.io": {16100, 21},
	"internal.apiserver.k8s.io":    {16000, 9},
	"storagemigration.k8s.io":      {15800, 15},
}
