package crd

import (
	"fmt"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestRepeatedItemsOfChangedLists checks that repeated items in a list are an error if an update changes or moves the
// list. They are not an error in an unchanged list (VAL-035, VAL-036).
func TestRepeatedItemsOfChangedLists(t *testing.T) {
	s := mustCompile(t, `{"type":"object","properties":{
		"set":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},
		"n":{"type":"integer"},
		"map":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["k"],
		"items":{"type":"object","required":["k"],"properties":{
			"k":{"type":"string"},"v":{"type":"integer"},"set":{"type":"array","x-kubernetes-list-type":"set",
			"items":{"type":"string"}}}}},
		"atomic":{"type":"array","items":{"type":"object","properties":{"set":{"type":"array",
		"x-kubernetes-list-type":"set","items":{"type":"string"}}}}},
		"any":{"type":"object","additionalProperties":{"type":"array","x-kubernetes-list-type":"set",
		"items":{"type":"string"}}}}}`)
	for _, c := range []struct {
		old, is string
		want    string // path of the error; "" means no error
	}{
		{`{"set":["a","a"]}`, `{"set":["a","a"]}`, ""},
		{`{"set":["a","a"]}`, `{"set":["a","a"],"n":1}`, ""},
		{`{"set":["a","a"]}`, `{"set":["a","a","b"]}`, "set[1]"},
		{`{"set":["a","b","a"]}`, `{"set":["a","a","b"]}`, "set[1]"},
		{`{"set":["a","a","b","b"]}`, `{"set":["a","b","b"]}`, "set[2]"},
		{`{"set":["a","a"]}`, `{"set":["a"]}`, ""},
		{`{"set":["a"]}`, `{"set":["a","a"]}`, "set[1]"},
		{`{"set":["a","a"]}`, `{"set":["a","a"],"any":{"x":["b","b"]}}`, "any[x][1]"},
		{`{"any":{"x":["b","b"]}}`, `{"any":{"x":["b","b"],"y":[]}}`, ""},
		{`{"any":{"x":["b","b"]}}`, `{"any":{"y":["b","b"]}}`, "any[y][1]"},
		{`{"map":[{"k":"a"},{"k":"a"}]}`, `{"map":[{"k":"a"},{"k":"a"}],"n":2}`, ""},
		{`{"map":[{"k":"a"},{"k":"a"}]}`, `{"map":[{"k":"a"},{"k":"a","v":1}]}`, "map[1]"},
		{`{"map":[{"k":"a","set":["x","x"]}]}`, `{"map":[{"k":"b"},{"k":"a","v":1,"set":["x","x"]}]}`, ""},
		{`{"map":[{"k":"a","set":["x","x"]}]}`, `{"map":[{"k":"b","set":["x","x"]}]}`, "map[0].set[1]"},
		{`{"atomic":[{"set":["x","x"]}]}`, `{"atomic":[{"set":["x","x"]}],"n":1}`, ""},
		{`{"atomic":[{"set":["x","x"]}]}`, `{"atomic":[{"set":["x","x"]},{}]}`, "atomic[0].set[1]"},
		{"", `{"set":["a","a"]}`, "set[1]"},
	} {
		var old object.Tree
		if c.old != "" {
			old = mustDecode(t, c.old)
		}
		errs := s.ValidateExtensions(t.Context(), mustDecode(t, c.is), old, false, nil, nil)
		got := ""
		if len(errs) > 0 {
			got = errs[0].Field
		}
		if got != c.want {
			t.Errorf("%s after %s: %v, want an error of %q", c.is, c.old, fmt.Sprint(errs), c.want)
		}
	}
}

func mustDecode(t *testing.T, js string) object.Tree {
	t.Helper()
	tree, _, err := object.DecodeJSON([]byte(js))
	if err != nil {
		t.Fatal(err)
	}
	return tree
}
