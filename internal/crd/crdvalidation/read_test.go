package crdvalidation

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"

	"github.com/trellis-k8s/trellis/internal/object"
)

// sameCRD compares the CRD that Read decodes from JSON with upstream's internal form. It returns false if the CRD
// cannot be decoded.
func sameCRD(t *testing.T, what string, tree object.Tree) bool {
	t.Helper()
	js := object.AppendJSON(nil, tree)
	want, failed := decodeInternal(js)
	got, err := Read(js)
	if (err != nil) != (failed != nil) {
		t.Fatalf("%s: Read returned %v, upstream %v", what, err, failed)
	}
	if err != nil {
		return false
	}
	want.ManagedFields = nil
	if upstream := got.Upstream(); !apiequality.Semantic.DeepEqual(upstream, want) {
		t.Errorf("%s: Read returned\n%s\nupstream\n%s", what, object.AppendJSON(nil, upstream.Spec),
			object.AppendJSON(nil, want.Spec))
	}
	return true
}

// mutateTree changes one random position in v.
func mutateTree(r *rand.Rand, v any) any {
	odd := []any{nil, "", "x", int64(1), 1.5, true, false, []any{}, object.Tree{}, []any{"a"}, []any{int64(1)},
		object.Tree{"type": "string"}}
	switch v := v.(type) {
	case object.Tree:
		keys := make([]string, 0, len(v))
		for k := range v {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		if len(keys) > 0 && r.IntN(8) > 0 {
			k := keys[r.IntN(len(keys))]
			v[k] = mutateTree(r, v[k])
			return v
		}
		words := []string{"type", "default", "enum", "items", "additionalProperties", "not", "anyOf", "maximum",
			"maxLength", "nullable", "required",
			"x-kubernetes-validations", "x-kubernetes-list-type", "x-kubernetes-list-map-keys",
			"x-kubernetes-preserve-unknown-fields",
			"definitions", "dependencies", "$ref", "id", "externalDocs", "example", "schema", "unknown"}
		v[words[r.IntN(len(words))]] = odd[r.IntN(len(odd))]
		return v
	case []any:
		if len(v) > 0 {
			i := r.IntN(len(v))
			v[i] = mutateTree(r, v[i])
			return v
		}
	}
	return odd[r.IntN(len(odd))]
}

// TestReadAgainstUpstream checks that Read returns the same CRD as upstream's types.
func TestReadAgainstUpstream(t *testing.T) {
	r, read := rand.New(rand.NewPCG(3, 5)), 0
	for i, f := range corpus(t) {
		if i%7 != 0 {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		js, err := yaml.YAMLToJSON(data)
		if err != nil {
			t.Fatal(err)
		}
		tree, _, err := object.DecodeJSON(js)
		if err != nil {
			t.Fatal(err)
		}
		sameCRD(t, f, tree)
		if len(js) > 100_000 {
			continue
		}
		for range 6 {
			other := object.Copy(tree)
			spec, _ := other["spec"].(object.Tree)
			versions, _ := spec["versions"].([]any)
			if len(versions) > 0 && r.IntN(3) > 0 {
				versions[r.IntN(len(versions))] = object.CopyValue(versions[0])
			}
			other["spec"] = mutateTree(r, other["spec"])
			if sameCRD(t, f, other) {
				read++
			}
			if t.Failed() {
				return
			}
		}
	}
	if read < 50 {
		t.Errorf("only %d of the changed CRDs could be decoded", read)
	}
}
