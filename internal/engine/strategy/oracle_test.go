package strategy

import (
	"math/rand"
	"slices"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"

	"github.com/trellis-k8s/trellis/internal/object"
)

// normalizedUpstream normalizes an object's metadata with upstream's code.
func normalizedUpstream(tree object.Tree) (unknown []string, err error) {
	md, found, unknown, err := objectmeta.GetObjectMetaWithOptions(tree,
		objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err != nil || !found {
		return nil, err
	}
	return unknown, objectmeta.SetObjectMeta(tree, md)
}

// compareMetadata checks that both normalizations of an object's metadata have the same result (CRD-020).
func compareMetadata(t *testing.T, js []byte) {
	got, _, err := object.DecodeJSON(js)
	if err != nil {
		return
	}
	want := object.Copy(got)
	unknown, err := normalizeMetadata(got)
	wantUnknown, wantErr := normalizedUpstream(want)
	if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
		t.Fatalf("%s: got error %v, want %v", js, err, wantErr)
	}
	if err != nil {
		return
	}
	slices.Sort(unknown)
	slices.Sort(wantUnknown)
	if !slices.Equal(unknown, wantUnknown) {
		t.Errorf("%s: got unknown fields %q, want %q", js, unknown, wantUnknown)
	}
	for _, tree := range []object.Tree{got, want} { // the server always sets creationTimestamp
		if md := object.Metadata(tree); md["creationTimestamp"] == nil {
			delete(md, "creationTimestamp")
		}
	}
	if !object.Equal(got["metadata"], want["metadata"]) {
		t.Errorf("%s: got %v, want %v", js, got["metadata"], want["metadata"])
	}
}

// TestMetadataAsUpstream checks that random metadata is normalized as in upstream (CRD-020).
func TestMetadataAsUpstream(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	pick := func(list ...any) any { return list[r.Intn(len(list))] }
	owner := func() any {
		o := object.Tree{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": pick("u", int64(1), nil)}
		if r.Intn(3) == 0 {
			o[pick("controller", "blockOwnerDeletion", "extra").(string)] = pick(true, "x", nil)
		}
		return o
	}
	entry := func() any {
		e := object.Tree{"manager": pick("m", ""), "operation": pick("Update", "Foo"),
			"time": pick("2026-01-01T00:00:00Z", "2026-01-01T00:00:00+02:00", nil,
				"x"), "fieldsV1": pick(object.Tree{"f:spec": object.Tree{}}, nil, object.Tree{})}
		if r.Intn(4) == 0 {
			e["more"] = int64(1)
		}
		return e
	}
	for range 5000 {
		md := object.Tree{}
		for _, f := range []struct {
			key string
			v   any
		}{
			{"name", pick("a", "", nil, int64(5))},
			{"generation", pick(int64(0), int64(3), nil, "x", 1.5)},
			{"creationTimestamp", pick("2026-01-01T00:00:00Z", "2026-01-01T00:00:00.5Z", "2026-01-01T02:00:00+02:00",
				nil, "junk", "")},
			{"deletionGracePeriodSeconds", pick(int64(0), int64(3), nil)},
			{"labels", pick(object.Tree{"a": "b"}, object.Tree{}, nil, object.Tree{"a": nil},
				object.Tree{"a": int64(1)}, []any{})},
			{"annotations", pick(object.Tree{"a": "b"}, object.Tree{})},
			{"finalizers", pick([]any{"a"}, []any{}, []any{nil}, []any{int64(1)}, "x")},
			{"ownerReferences", pick([]any{owner()}, []any{owner(), owner()}, []any{}, nil, []any{nil})},
			{"managedFields", pick([]any{entry()}, []any{entry(), entry()}, []any{}, []any{object.Tree{}})},
			{"Name", "wrong case"}, {"extra", object.Tree{"a": "b"}},
		} {
			if r.Intn(4) == 0 {
				md[f.key] = f.v
			}
		}
		compareMetadata(t, object.AppendJSON(nil, object.Tree{"metadata": md}))
	}
	for _, js := range []string{`{}`, `{"metadata":null}`, `{"metadata":5}`, `{"metadata":[]}`, `{"metadata":"x"}`} {
		compareMetadata(t, []byte(js))
	}
}

// FuzzMetadata checks that any metadata is normalized as in upstream.
func FuzzMetadata(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"a","labels":{"x":"y"},"ownerReferences":[{"apiVersion":"v1","kind":"Pod",` +
		`"name":"p","uid":"u"}]}}`))
	f.Fuzz(compareMetadata)
}
