package resource_test

import (
	"fmt"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// TestItemLimit checks that a limit counts the items of lists and maps at all its paths together and ignores other
// values. It also checks that errors name the first path.
func TestItemLimit(t *testing.T) {
	for _, c := range []struct {
		object, want string
		paths        []string
	}{
		{`{}`, "", []string{"a"}},
		{`{"a":[1,2]}`, "", []string{"a"}},
		{`{"a":[1,2,3]}`, "a: Too many: 3: must have at most 2 items", []string{"a"}},
		{`{"a":{"x":1,"y":2,"z":3}}`, "a: Too many: 3: must have at most 2 items", []string{"a"}},
		{`{"a":{"b":[1,2,3]}}`, "a.b: Too many: 3: must have at most 2 items", []string{"a.b"}},
		{`{"a":[{"b":[1,2]},{},null,"x",{"b":[3]}]}`, "a[*].b: Too many: 3: must have at most 2 items",
			[]string{"a.*.b"}},
		{`{"a":{"x":{"b":[1,2]},"y":{"b":{"k":3}}}}`, "a[*].b: Too many: 3: must have at most 2 items",
			[]string{"a.*.b"}},
		{`{"a":[1],"c":{"d":[2,3]}}`, "a: Too many: 3: must have at most 2 items", []string{"a", "c.d"}},
		{`{"a":7,"c":"text"}`, "", []string{"a", "a.b", "c.*.d"}},
		{`{"a":"k in (v,w,x),l"}`, "", []string{"a"}},
		{`{"a":"","b":"k,l"}`, "", []string{"a", "b"}},
		{`{"a":"k=v,l,m notin (v,w)"}`, "a: Too many: 3: must have at most 2 items", []string{"a"}},
	} {
		tree, _, err := object.DecodeJSON([]byte(c.object))
		if err != nil {
			t.Fatal(err)
		}
		l := resource.NewItemLimit(2, c.paths...)
		got := ""
		if err := l.Check(tree); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", fmt.Sprint(c.paths, c.object), got, c.want)
		}
	}
}
