package catalog

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// APIServicePrefix is the prefix of the storage keys of APIServices.
const APIServicePrefix = "/registry/apiregistration.k8s.io/apiservices/"

// APIService is a group version that another server serves. It is immutable.
type APIService struct {
	Name            string
	UID             types.UID
	GroupVersion    schema.GroupVersion
	GroupPriority   int
	VersionPriority int

	Namespace, Service string
	Port               int32
	CABundle           []byte // PEM
	Insecure           bool   // do not verify the server's certificate
}

// SameSpec reports whether two APIServices are equal except for their status.
func (s *APIService) SameSpec(o *APIService) bool {
	return s.UID == o.UID && s.GroupVersion == o.GroupVersion &&
		s.GroupPriority == o.GroupPriority && s.VersionPriority == o.VersionPriority &&
		s.Namespace == o.Namespace && s.Service == o.Service && s.Port == o.Port &&
		bytes.Equal(s.CABundle, o.CABundle) && s.Insecure == o.Insecure
}

// fromAPIService decodes the record of a stored APIService. It returns nil for an APIService without a Service,
// which means that this server serves the group version.
func fromAPIService(r *storage.Record) *APIService {
	var a apiregistrationv1.APIService
	if json.Unmarshal(r.Value, &a) != nil || a.Spec.Service == nil {
		return nil
	}
	s := &APIService{
		Name: a.Name, UID: a.UID, GroupVersion: schema.GroupVersion{Group: a.Spec.Group, Version: a.Spec.Version},
		GroupPriority: int(a.Spec.GroupPriorityMinimum), VersionPriority: int(a.Spec.VersionPriority),
		Namespace: a.Spec.Service.Namespace, Service: a.Spec.Service.Name, Port: 443,
		CABundle: a.Spec.CABundle, Insecure: a.Spec.InsecureSkipTLSVerify,
	}
	if a.Spec.Service.Port != nil {
		s.Port = *a.Spec.Service.Port
	}
	return s
}

// APIServices returns all group versions that other servers serve, ordered by group and version.
func (c *Catalog) APIServices() (all []*APIService) {
	for _, g := range c.groups {
		all = append(all, g.value.aggregated...)
	}
	return all
}

// applyAPIService applies the state of one APIService. A nil record means that it is deleted.
func (e *edit) applyAPIService(key string, r *storage.Record) {
	version, groupName, _ := strings.Cut(strings.TrimPrefix(key, APIServicePrefix), ".")
	if groupName == apiregistrationv1.GroupName { // if this group were aggregated, the change could not be undone
		return
	}
	var next *APIService
	if r != nil {
		next = fromAPIService(r)
	}
	var current *APIService
	if i, ok := e.groups.find(groupName); ok {
		current = e.groups[i].value.aggregatedVersion(version)
	}
	if current == next || current != nil && next != nil && current.SameSpec(next) {
		return
	}
	e.reorder = true
	g := e.mutableGroup(groupName)
	g.aggregated = slices.DeleteFunc(g.aggregated, func(s *APIService) bool { return s == current })
	if next != nil {
		g.aggregated = append(g.aggregated, next)
		slices.SortFunc(g.aggregated, func(a, b *APIService) int {
			return strings.Compare(a.GroupVersion.Version, b.GroupVersion.Version)
		})
	}
	e.removeIfEmpty(groupName)
}

// aggregatedVersion returns the APIService of a version of the group, or nil if no other server serves the version.
func (g *group) aggregatedVersion(version string) *APIService {
	for _, s := range g.aggregated {
		if s.GroupVersion.Version == version {
			return s
		}
	}
	return nil
}

// order is the order of groups in discovery. The groups in the field first come first, and the groups in the field
// last come last. All other groups are between them, sorted by name.
type order struct{ first, last []string }

// discoveryOrder sorts groups as kube-apiserver does, by the highest groupPriorityMinimum of their APIServices and
// then by name.
func discoveryOrder(groups byName[*group]) (o order) {
	rank := map[string]int{}
	for _, g := range groups {
		if rank[g.name] = g.value.priority(); rank[g.name] > CustomPriority {
			o.first = append(o.first, g.name)
		} else if rank[g.name] < CustomPriority {
			o.last = append(o.last, g.name)
		}
	}
	for _, names := range [][]string{o.first, o.last} {
		slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(rank[b], rank[a]) })
	}
	return o
}

// priority returns the group's groupPriorityMinimum. It ignores local versions that aggregated versions replace.
func (g *group) priority() (highest int) {
	for _, s := range g.aggregated {
		highest = max(highest, s.GroupPriority)
	}
	if len(g.aggregated) == 0 || slices.ContainsFunc(g.kinds, g.servesLocally) {
		highest = max(highest, LocalPriority(schema.GroupVersion{Group: g.name}).Group)
	}
	return highest
}

// servesLocally reports whether this server serves a version of kind in the group.
func (g *group) servesLocally(kind named[*resource.Definition]) bool {
	return slices.ContainsFunc(kind.value.Versions, func(v *resource.Version) bool {
		return v.Served && v.GroupVersion.Group == g.name && g.aggregatedVersion(v.GroupVersion.Version) == nil
	})
}
