package catalog

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/version"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/fixture/outside"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

var kubernetesLike = regexp.MustCompile(`^v([0-9]+)(?:(alpha|beta)([0-9]+))?$`)

// precedes reports whether version a has a higher priority than b. It implements the documented rule independently
// of the code and of upstream.
func precedes(a, b string) bool {
	x, y := kubernetesLike.FindStringSubmatch(a), kubernetesLike.FindStringSubmatch(b)
	switch {
	case x == nil && y == nil:
		return a < b // VER-022: digits are not special
	case x == nil || y == nil:
		return x != nil // VER-018
	}
	rank := map[string]int{"": 3, "beta": 2, "alpha": 1}
	if rank[x[2]] != rank[y[2]] {
		return rank[x[2]] > rank[y[2]] // VER-019
	}
	for _, i := range []int{1, 3} { // VER-020, VER-021
		m, _ := strconv.Atoi(x[i])
		n, _ := strconv.Atoi(y[i])
		if m != n {
			return m > n
		}
	}
	return false
}

// crdJSON returns an established CRD with versions, which are in JSON.
func crdJSON(versions string) []byte {
	return []byte(`{"metadata":{"name":"as.example.com"},"spec":{"group":"example.com",` +
		`"names":{"plural":"as","kind":"A"},"scope":"Namespaced","versions":[` + versions + `]},` +
		`"status":{"acceptedNames":{"plural":"as","kind":"A"},"conditions":[{"type":"Established","status":"True"}]}}`)
}

// orderOf compiles a CRD with the named versions. It returns the order of the versions in its Definition, and its group
// in discovery.
func orderOf(t *testing.T, names []string) (ordered []string, group *Group) {
	t.Helper()
	var versions []string
	for i, name := range names {
		versions = append(
			versions, fmt.Sprintf(`{"name":%q,"served":true,"storage":%t,"deprecated":%t}`, name, i == 0, i == 1),
		)
	}
	tree, _, err := object.DecodeJSON(crdJSON(strings.Join(versions, ",")))
	if err != nil {
		t.Fatal(err)
	}
	r := &storage.Record{Key: definition.CRDPrefix + "as.example.com", Modified: 1, Value: object.Pack(tree, 0).JSON()}
	d := definition.FromCRD(r)
	for _, v := range d.Versions {
		ordered = append(ordered, v.GroupVersion.Version)
	}
	c := newCatalog(nil).withChanges([]*storage.Event{{Key: r.Key, Revision: 1, Record: r}})
	return ordered, c.groups[0].value.discovery()
}

// TestDocumentedVersionOrder checks the documented order of versions, whatever their order in the CRD.
//
// VER-016 VER-017 VER-018 VER-019 VER-020 VER-021 VER-022 VER-023
func TestDocumentedVersionOrder(t *testing.T) {
	want := []string{"v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"}
	data, err := os.ReadFile(outside.Path("spec/examples/08-versions/expect-version-order.txt"))
	if err == nil && !slices.Equal(strings.Fields(string(data)), want) {
		t.Errorf("got %v, but the file contains %s", want, data)
	}
	for seed := range 50 {
		r := rand.New(rand.NewPCG(uint64(seed), 4))
		names := slices.Clone(want)
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		definition, group := orderOf(t, names)
		if !slices.Equal(definition, want) || !slices.Equal(group.Versions, want) || group.Preferred != "v10" {
			t.Fatalf("versions %v: got order %v, in discovery %v with preferred %s, want %v",
				names, definition, group.Versions, group.Preferred, want)
		}
	}
}

// TestRandomVersionOrder checks that random version names are ordered by the documented rule and as in upstream's
// discovery. The default warning of a deprecated version names the best remaining version.
//
// VER-017 VER-018 VER-024
func TestRandomVersionOrder(t *testing.T) {
	parts := []string{"v", "foo", "x", "va", "beta", "alpha", "1", "2", "10", "11", "0", "01", "v1"}
	for seed := range 400 {
		r := rand.New(rand.NewPCG(uint64(seed), 5))
		var names []string
		for len(names) < 2+r.IntN(8) {
			name := []string{"v", "foo", "x"}[r.IntN(3)]
			if r.IntN(3) > 0 {
				name = "v" + strconv.Itoa(1+r.IntN(12)) + []string{"", "alpha", "beta"}[r.IntN(3)]
			}
			for range r.IntN(3) {
				name += parts[r.IntN(len(parts))]
			}
			// The rule does not order names such as v1 and v01.
			unordered := func(other string) bool { return !precedes(name, other) && !precedes(other, name) }
			if !slices.ContainsFunc(names, unordered) {
				names = append(names, name)
			}
		}
		want := slices.Clone(names)
		slices.SortFunc(want, func(a, b string) int {
			switch {
			case precedes(a, b):
				return -1
			case precedes(b, a):
				return 1
			}
			return 0
		})
		upstream := slices.Clone(names)
		slices.SortFunc(upstream, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
		definition, group := orderOf(t, names)
		if !slices.Equal(definition, want) || !slices.Equal(upstream, want) ||
			!slices.Equal(group.Versions, want) || group.Preferred != want[0] {
			t.Fatalf("versions %v: got order %v, in discovery %v, in upstream %v, want %v",
				names, definition, group.Versions, upstream, want)
		}
	}
}

// TestDefaultDeprecationText checks that the default warning names the group, version and kind. It also names the
// version to use if a newer version is served and not deprecated.
//
// VER-027 VER-032
func TestDefaultDeprecationText(t *testing.T) {
	for _, c := range []struct{ versions, want string }{
		{
			`{"name":"v1beta1","served":true,"deprecated":true},{"name":"v1","served":true,"storage":true}`,
			"example.com/v1beta1 A is deprecated; use example.com/v1 A",
		},
		{
			`{"name":"v1beta1","served":true,"deprecated":true},{"name":"v2","served":true},{"name":"v1","served":true,"storage":true}`,
			"example.com/v1beta1 A is deprecated; use example.com/v2 A",
		},
		{
			`{"name":"v1beta1","served":true,"deprecated":true},{"name":"v1","served":false,"storage":true}`,
			"example.com/v1beta1 A is deprecated",
		},
		{
			`{"name":"v1beta1","served":true,"deprecated":true},{"name":"v1","served":true,"deprecated":true,"storage":true}`,
			"example.com/v1beta1 A is deprecated",
		},
		{
			`{"name":"v1beta1","served":true,"deprecated":true},{"name":"v1alpha1","served":true,"storage":true}`,
			"example.com/v1beta1 A is deprecated",
		},
		{
			`{"name":"v1beta1","served":true,"deprecated":true,"deprecationWarning":"go away"},{"name":"v1","served":true,"storage":true}`,
			"go away",
		},
	} {
		tree, _, err := object.DecodeJSON(crdJSON(c.versions))
		if err != nil {
			t.Fatal(err)
		}
		d := definition.FromCRD(&storage.Record{Key: definition.CRDPrefix + "as.example.com", Modified: 1,
			Value: object.Pack(tree, 0).JSON()})
		for _, v := range d.Versions {
			if v.GroupVersion.Version == "v1beta1" && (!v.Deprecated || v.DeprecationWarning != c.want) {
				t.Errorf("%s: got warning %q, want %q", c.versions, v.DeprecationWarning, c.want)
			}
			if v.GroupVersion.Version == "v2" && v.Deprecated { // VER-031
				t.Error("v2 is not deprecated")
			}
		}
	}
}
