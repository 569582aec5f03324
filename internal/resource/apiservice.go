package resource

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// APIServicePrefix is where APIServices are stored.
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
	Insecure           bool   // nobody looks whose certificate it is
}

// Same reports whether two mean the same, whatever their status says.
func (s *APIService) Same(o *APIService) bool {
	return s.UID == o.UID && s.GroupVersion == o.GroupVersion && s.GroupPriority == o.GroupPriority && s.VersionPriority == o.VersionPriority &&
		s.Namespace == o.Namespace && s.Service == o.Service && s.Port == o.Port && bytes.Equal(s.CABundle, o.CABundle) && s.Insecure == o.Insecure
}

// fromAPIService reads the record of a stored APIService; nil for one without a Service, which says of a group version that
// this server serves it.
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

// APIServices yields those of all group versions that other servers serve, ordered by group and version.
func (c *Catalog) APIServices() (all []*APIService) {
	for _, g := range c.groups {
		all = append(all, g.is.theirs...)
	}
	return all
}

// serve makes the state of one APIService known; a nil record means that it is gone.
func (e *edit) serve(key string, r *storage.Record) {
	version, groupName, _ := strings.Cut(strings.TrimPrefix(key, APIServicePrefix), ".")
	if groupName == apiregistrationv1.GroupName { // or nobody could take it back
		return
	}
	var next *APIService
	if r != nil {
		next = fromAPIService(r)
	}
	var now *APIService
	if i, ok := e.groups.find(groupName); ok {
		now = e.groups[i].is.theirsAt(version)
	}
	if now == next || now != nil && next != nil && now.Same(next) {
		return
	}
	e.reorder = true
	g := e.writable(groupName)
	g.theirs = slices.DeleteFunc(g.theirs, func(s *APIService) bool { return s == now })
	if next != nil {
		g.theirs = append(g.theirs, next)
		slices.SortFunc(g.theirs, func(a, b *APIService) int { return strings.Compare(a.GroupVersion.Version, b.GroupVersion.Version) })
	}
	e.drop(groupName)
}

// theirsAt returns who else serves a version of the group; nil: nobody.
func (g *group) theirsAt(version string) *APIService {
	for _, s := range g.theirs {
		if s.GroupVersion.Version == version {
			return s
		}
	}
	return nil
}

// order is that of the groups in discovery: those in first, then all that are in neither list, by name, then those in last.
type order struct{ first, last []string }

// discoveryOrder sorts groups as kube-apiserver does, by the highest groupPriorityMinimum of their APIServices, and then by name.
func discoveryOrder(groups byName[*group]) (o order) {
	rank := map[string]int{}
	for _, g := range groups {
		if rank[g.name] = g.is.priority(); rank[g.name] > CustomPriority {
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

// priority is the group's groupPriorityMinimum. What has been taken over does not count for it.
func (g *group) priority() (highest int) {
	for _, s := range g.theirs {
		highest = max(highest, s.GroupPriority)
	}
	if len(g.theirs) == 0 || slices.ContainsFunc(g.kinds, g.serves) {
		highest = max(highest, LocalPriority(schema.GroupVersion{Group: g.name}).Group)
	}
	return highest
}

// serves says that this server serves a version of a kind of the group.
func (g *group) serves(kind named[*Definition]) bool {
	return slices.ContainsFunc(kind.is.Versions, func(v *Version) bool {
		return v.Served && v.GroupVersion.Group == g.name && g.theirsAt(v.GroupVersion.Version) == nil
	})
}
