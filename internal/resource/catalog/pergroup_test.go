package catalog

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// TestForGroups checks that the copied values equal newly computed values of all groups, and that only changed
// groups are computed.
func TestForGroups(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	builtin := &resource.Definition{Group: "m.example.com", Names: resource.Names{Plural: "fixed"}}
	builtin.Versions = []*resource.Version{{Definition: builtin, Served: true}}
	builtin.Versions[0].GroupVersion.Group, builtin.Versions[0].GroupVersion.Version = "m.example.com", "v1"
	catalog := newCatalog([]*resource.Definition{builtin})
	var last *PerGroup[*Group]
	for revision := range int64(300) {
		touched := map[string]bool{}
		var changes []*storage.Event
		for range random.IntN(4) {
			group, plural := fmt.Sprintf("%c.example.com", 'a'+random.IntN(20)), fmt.Sprint("kind", random.IntN(3))
			crd := crdTree(group, plural, plural)
			if random.IntN(4) == 0 { // no version of the CRD is served
				crd["status"] = nil
			}
			r := record(crd, revision+1)
			e := &storage.Event{Revision: revision + 1, Key: r.Key, Record: r}
			if random.IntN(3) == 0 {
				e.Record = nil
			}
			touched[group] = true
			changes = append(changes, e)
		}
		catalog = catalog.withChanges(changes)
		former := last
		last = ForGroups(catalog, former, func(previous, group *Group) *Group {
			if former != nil && group != nil && !touched[group.Name] || previous != nil && !touched[previous.Name] {
				t.Errorf("unchanged group %v computed as %v", previous, group)
			}
			if previous != nil &&
				(former.Find(previous.Name) != previous || group != nil && group.Name != previous.Name) {
				t.Errorf("got previous value %v for group %v", previous, group)
			}
			return group
		})
		want := slices.Collect(catalog.Groups())
		got := slices.DeleteFunc(slices.Collect(last.All()), func(g *Group) bool { return g == nil })
		if !slices.Equal(got, want) {
			t.Fatalf("after changes of %v: got %v, want %v", touched, got, want)
		}
		for _, g := range want {
			if last.Find(g.Name) != g {
				t.Fatalf("group %s not found", g.Name)
			}
		}
	}
	if last.Find("nothing.example.com") != nil {
		t.Error("found a group that does not exist")
	}
}

// BenchmarkForGroups measures the update of a PerGroup after a change of one group.
func BenchmarkForGroups(b *testing.B) {
	for _, groups := range []int{10, 5000} {
		b.Run(fmt.Sprint("groups=", groups), func(b *testing.B) {
			c, records := catalogOf(groups, groups)
			compute := func(_, group *Group) *Group { return group }
			last := ForGroups(c, nil, compute)
			r := records[groups/2]
			next := c.withChanges([]*storage.Event{{Revision: 6000, Key: r.Key, Record: r}})
			b.ReportAllocs()
			for b.Loop() {
				ForGroups(next, last, compute)
			}
		})
	}
}
