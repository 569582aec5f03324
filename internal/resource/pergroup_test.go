package resource

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// What is taken over from one catalog to another is what would be found by looking at all groups, and nothing else is looked at.
func TestForGroups(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	builtin := &Definition{Group: "m.example.com", Names: Names{Plural: "fixed"}}
	builtin.Versions = []*Version{{Definition: builtin, Served: true}}
	builtin.Versions[0].GroupVersion.Group, builtin.Versions[0].GroupVersion.Version = "m.example.com", "v1"
	catalog := newCatalog([]*Definition{builtin})
	var last *PerGroup[*Group]
	for revision := range int64(300) {
		touched := map[string]bool{}
		var changes []*storage.Event
		for range random.IntN(4) {
			group, plural := fmt.Sprintf("%c.example.com", 'a'+random.IntN(20)), fmt.Sprint("kind", random.IntN(3))
			crd := crdTree(group, plural, plural)
			if random.IntN(4) == 0 { // no version of it is served
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
		catalog = catalog.with(changes)
		former := last
		last = ForGroups(catalog, former, func(was, is *Group) *Group {
			if former != nil && is != nil && !touched[is.Name] || was != nil && !touched[was.Name] {
				t.Errorf("%v and %v did not change", was, is)
			}
			if was != nil && (former.Find(was.Name) != was || is != nil && is.Name != was.Name) {
				t.Errorf("%v was not known as %v", is, was)
			}
			return is
		})
		want := slices.Collect(catalog.Groups())
		got := slices.DeleteFunc(slices.Collect(last.All()), func(g *Group) bool { return g == nil })
		if !slices.Equal(got, want) {
			t.Fatalf("after %v: %v, not %v", touched, got, want)
		}
		for _, g := range want {
			if last.Find(g.Name) != g {
				t.Fatalf("%s is not found", g.Name)
			}
		}
	}
	if last.Find("nothing.example.com") != nil {
		t.Error("found what is not there")
	}
}

// BenchmarkForGroups is what remains of a change for whoever knows something of each group.
func BenchmarkForGroups(b *testing.B) {
	for _, groups := range []int{10, 5000} {
		b.Run(fmt.Sprint("groups=", groups), func(b *testing.B) {
			c, records := catalogOf(groups, groups)
			look := func(_, is *Group) *Group { return is }
			last := ForGroups(c, nil, look)
			r := records[groups/2]
			next := c.with([]*storage.Event{{Revision: 6000, Key: r.Key, Record: r}})
			b.ReportAllocs()
			for b.Loop() {
				ForGroups(next, last, look)
			}
		})
	}
}
