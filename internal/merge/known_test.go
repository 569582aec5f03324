package merge

import (
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// CRD-055: what is remembered changes nothing.
func TestSetsAreReadAsWithoutMemory(t *testing.T) {
	var known Sets
	trees := []string{
		`{"f:spec":{"f:a":{},"f:b":{".":{},"k:{\"name\":\"x\"}":{}}}}`, `{"f:spec":{"f:a":{},"f:b":{".":{}}}}`, `{"f:a":{},"f:b":{}}`,
		`{"f:a":{"f:b":{}}}`, `{"f:b":{"f:a":{}}}`, `{}`, `{"f:a":null}`, `{"f:a":1}`, `{"x":{}}`, `{"k:{":{}}`,
		`{"f:` + strings.Repeat("a", knownSize) + `":{}}`,
	}
	for range 20 {
		for _, js := range trees {
			tree, _, err := object.DecodeJSON([]byte(js))
			if err != nil {
				t.Fatal(err)
			}
			want, wantCanonical, wantErr := setOf(tree, nil)
			set, canonical, err := setOf(tree, &known)
			if canonical != wantCanonical || (err == nil) != (wantErr == nil) {
				t.Fatalf("%s: %v, %v; want %v, %v", js, canonical, err, wantCanonical, wantErr)
			}
			if err == nil && !set.Equals(want) {
				t.Errorf("%s: %v, want %v", js, set, want)
			}
		}
	}
	if large, _, _ := object.DecodeJSON([]byte(trees[len(trees)-1])); known.find(large) != nil {
		t.Error("a large set is kept")
	}
	if usual, _, _ := object.DecodeJSON([]byte(trees[0])); known.find(usual) == nil {
		t.Error("a set that came often is not kept")
	}
}
