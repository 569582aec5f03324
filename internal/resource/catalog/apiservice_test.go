package catalog

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/storage"
)

func apiService(group, version string, groupPriority, versionPriority int32) *apiregistrationv1.APIService {
	s := &apiregistrationv1.APIService{}
	s.Name = version + "." + group
	s.Spec = apiregistrationv1.APIServiceSpec{
		Group: group, Version: version, GroupPriorityMinimum: groupPriority, VersionPriority: versionPriority,
		Service: &apiregistrationv1.ServiceReference{Namespace: "n", Name: "s"},
	}
	return s
}

// model holds APIServices by name. An APIService without a Service is a group version that this server serves.
type model map[string]*apiregistrationv1.APIService

// groups returns the group versions in the order of discovery. Groups are ordered by the highest priority and by
// name, as in upstream's aggregated discovery. Versions are ordered as upstream sorts them.
func (m model) groups() (all []string) {
	groups := helper.SortedByGroupAndVersion(slices.Collect(maps.Values(m)))
	slices.SortFunc(groups, func(a, b []*apiregistrationv1.APIService) int {
		return cmp.Or(cmp.Compare(highest(b), highest(a)), cmp.Compare(a[0].Spec.Group, b[0].Spec.Group))
	})
	for _, group := range groups {
		for _, s := range group {
			all = append(all, s.Spec.Group+"/"+s.Spec.Version)
		}
	}
	return all
}

func highest(group []*apiregistrationv1.APIService) (priority int32) {
	for _, s := range group {
		priority = max(priority, s.Spec.GroupPriorityMinimum)
	}
	return priority
}

// TestRoute checks that routes and discovery equal upstream's result for the same APIServices, after any changes of
// APIServices, CRDs and priorities. A local group version is served again after its APIService has been deleted
// (AGG-048, AGG-050, AGG-055, AGG-060).
func TestRoute(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	groups, versions := []string{"a.example.com", "b.example.com", "c.example.com"}, []string{"v1", "v2", "v1beta1"}
	catalog, local, aggregated := newCatalog(nil), model{}, model{}
	for step := range 3000 {
		group, version := groups[random.IntN(len(groups))], versions[random.IntN(len(versions))]
		name := version + "." + group
		event := &storage.Event{Revision: int64(step + 1)}
		switch random.IntN(4) {
		case 0: // a CRD of one version
			event.Key = definition.CRDPrefix + "oxen." + group
			for _, v := range versions {
				delete(local, v+"."+group)
			}
			if random.IntN(3) > 0 {
				tree := crdTree(group, "oxen", "Ox")
				event.Record = record(tree, event.Revision)
				catalogOf := newCatalog(nil).withChanges([]*storage.Event{event})
				for g := range catalogOf.Groups() {
					for _, v := range g.Versions {
						s := apiService(group, v, CustomPriority, 100)
						s.Spec.Service = nil
						local[v+"."+group] = s
					}
				}
			}
		case 1:
			event.Key = APIServicePrefix + name
			delete(aggregated, name)
		default:
			s := apiService(group, version, int32(500+500*random.IntN(3)), int32(1+random.IntN(3)*100))
			aggregated[name] = s
			text, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			event.Key = APIServicePrefix + name
			event.Record = &storage.Record{Key: event.Key, Value: text, Modified: event.Revision}
		}
		catalog = catalog.withChanges([]*storage.Event{event})
		all := maps.Clone(local)
		maps.Copy(all, aggregated)
		var got []string
		for g := range catalog.Groups() {
			for _, v := range g.Versions {
				got = append(got, g.Name+"/"+v)
			}
		}
		if want := all.groups(); !slices.Equal(got, want) {
			t.Fatalf("step %d: got groups %v, want %v", step, got, want)
		}
		for _, g := range groups {
			for _, v := range versions {
				gotLocal, gotAggregated := catalog.Route(g, v, "oxen")
				wantAggregated := aggregated[v+"."+g] != nil
				wantLocal := !wantAggregated && local[v+"."+g] != nil
				if (gotAggregated != nil) != wantAggregated || (gotLocal != nil) != wantLocal {
					t.Fatalf("step %d: %s/%s: got local %v, aggregated %v; want %t, %t",
						step, g, v, gotLocal, gotAggregated, wantLocal, wantAggregated)
				}
			}
		}
	}
}

// TestSameAPIService checks that a change of an APIService's status does not replace the APIService in the catalog.
func TestSameAPIService(t *testing.T) {
	s := apiService("a.example.com", "v1", 1000, 15)
	at := func(c *Catalog, revision int64) (*Catalog, *APIService) {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		key := APIServicePrefix + s.Name
		r := &storage.Record{Key: key, Value: text, Modified: revision}
		c = c.withChanges([]*storage.Event{{Key: key, Revision: revision, Record: r}})
		_, is := c.Route("a.example.com", "v1", "")
		return c, is
	}
	c, first := at(newCatalog(nil), 1)
	s.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: apiregistrationv1.Available}}
	c, second := at(c, 2)
	if first == nil || first != second || first.Port != 443 ||
		!strings.HasPrefix(fmt.Sprint(first.GroupVersion), "a.example.com") {
		t.Errorf("got %+v, then %+v, want the same APIService", first, second)
	}
	s.Spec.InsecureSkipTLSVerify = true
	if _, third := at(c, 3); third == first || !third.Insecure {
		t.Errorf("after a change of the spec: got %+v, want a new APIService", third)
	}
}
