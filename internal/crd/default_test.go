package crd

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/crd/validation"
	"github.com/trellis-k8s/trellis/internal/fixture/realcrds"
	"github.com/trellis-k8s/trellis/internal/object"
)

// withDefaults adds valid and invalid defaults to some nodes of s and makes some nodes nullable.
func withDefaults(r *rand.Rand, s *apiextensionsv1.JSONSchemaProps, depth int) {
	for name, child := range s.Properties {
		withDefaults(r, &child, depth+1)
		s.Properties[name] = child
	}
	if s.Items != nil {
		withDefaults(r, s.Items.Schema, depth+1)
		if r.IntN(2) == 0 {
			kind := []string{"set", "map"}[r.IntN(2)]
			s.XListType = &kind
			s.XListMapKeys = [][]string{{"p0"}, {"p0", "p1"}, {"foo"}}[r.IntN(3)]
		}
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		withDefaults(r, s.AdditionalProperties.Schema, depth+1)
	}
	if depth > 0 && r.IntN(3) == 0 {
		n := compiledNode(s)
		value := randomTree(r, n, 3)
		if r.IntN(3) == 0 {
			value = []any{"x", int64(7), true, nil, object.Tree{"p0": nil, "foo": object.Tree{}}}[r.IntN(5)]
		}
		s.Default = &apiextensionsv1.JSON{Raw: object.AppendJSON(nil, value)}
	}
}

// plainMetadata removes embedded resources inside metadata, because no valid CRD has such resources.
func plainMetadata(s *apiextensionsv1.JSONSchemaProps, inside bool) {
	s.XEmbeddedResource = s.XEmbeddedResource && !inside
	for name, child := range s.Properties {
		plainMetadata(&child, inside || name == "metadata")
		s.Properties[name] = child
	}
	if s.Items != nil {
		plainMetadata(s.Items.Schema, inside)
	}
	if a := s.AdditionalProperties; a != nil && a.Schema != nil {
		plainMetadata(a.Schema, inside)
	}
}

func compiledNode(s *apiextensionsv1.JSONSchemaProps) *schema.Node {
	n := &schema.Node{Type: s.Type, Properties: map[string]*schema.Node{}}
	for name, child := range s.Properties {
		n.Properties[name] = compiledNode(&child)
	}
	if s.Items != nil {
		n.Items = compiledNode(s.Items.Schema)
	}
	if a := s.AdditionalProperties; a != nil {
		n.Additional = &schema.AdditionalProperties{}
		if a.Schema != nil {
			n.Additional.Schema = compiledNode(a.Schema)
		}
	}
	return n
}

// withNulls sets some values to null.
func withNulls(r *rand.Rand, v any) {
	switch v := v.(type) {
	case object.Tree:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if r.IntN(6) == 0 {
				v[k] = nil
			}
			withNulls(r, v[k])
		}
	case []any:
		for i := range v {
			if r.IntN(6) == 0 {
				v[i] = nil
			}
			withNulls(r, v[i])
		}
	}
}

// upstreamNormalize does the work of upstream's unstructuredSchemaCoercer and unstructuredDefaulter, except for the
// metadata of the root.
func upstreamNormalize(t object.Tree, s *structuralschema.Structural, drop bool) ([]string, *field.Error) {
	unknown := pruning.PruneWithOptions(t, s, true,
		structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	kept := object.Tree{}
	for _, k := range []string{"apiVersion", "kind", "metadata"} {
		if v, ok := t[k]; ok {
			kept[k] = object.CopyValue(v)
		}
	}
	defaulting.PruneNonNullableNullsWithoutDefaults(t, s)
	err, more := objectmeta.CoerceWithOptions(nil, t, s, false,
		objectmeta.CoerceOptions{ReturnUnknownFieldPaths: true, DropInvalidFields: drop})
	maps.Copy(t, kept)
	defaulting.Default(t, s)
	return append(unknown, more...), err
}

// randomCase returns a schema, compiled by both implementations, and objects for it.
func randomCase(t *testing.T, seed uint64) (ours *Compiled, theirs *structuralschema.Structural,
	objects []object.Tree) {
	r := rand.New(rand.NewPCG(seed, 17))
	props := randomSchema(r, 0)
	props.XEmbeddedResource = false
	delete(props.Properties, "metadata")
	delete(props.Properties, "kind")
	plainMetadata(props, false)
	withDefaults(r, props, 0)
	ours, theirs = compiled(t, props), realcrds.Structural(t, props).DeepCopy()
	if err := defaulting.PruneDefaults(theirs); err != nil {
		return nil, nil, nil
	}
	for range 3 {
		if tree, ok := randomTree(r, ours.Schema.Root, 0).(object.Tree); ok {
			delete(tree, "metadata")
			delete(tree, "kind")
			delete(tree, "apiVersion")
			withNulls(r, tree)
			objects = append(objects, tree)
		}
	}
	return ours, theirs, objects
}

// TestNormalizeAgainstUpstream checks that objects from requests and from storage are normalized as upstream does.
// DEF-003, DEF-004, DEF-006, DEF-012, DEF-014, DEF-016, DEF-017, DEF-018, DEF-019, DEF-022
func TestNormalizeAgainstUpstream(t *testing.T) {
	filled, refused, notNormalized := 0, 0, 0
	for seed := range uint64(8000) {
		ours, theirs, objects := randomCase(t, seed)
		for _, tree := range objects {
			for _, drop := range []bool{false, true} {
				a, b := object.Copy(tree), object.Copy(tree)
				want, wantErr := upstreamNormalize(b, theirs, drop)
				if drop {
					ours.NormalizeStored(a)
				} else if got, err := ours.Normalize(a); (err == nil) != (wantErr == nil) {
					t.Fatalf("seed %d: ours %v, upstream %v", seed, err, wantErr)
				} else if err != nil {
					refused++
					continue
				} else if !slices.Equal(got, want) {
					t.Fatalf("seed %d: unknown fields\nours     %q\nupstream %q", seed, got, want)
				}
				if !object.Equal(a, b) {
					t.Fatalf("seed %d (from storage: %v)\nobject   %v\nours     %v\nupstream %v", seed, drop, tree, a,
						b)
				}
				if !object.Equal(a, tree) {
					filled++
				}
				again := object.Copy(a)
				ours.NormalizeStored(again)
				if settled := ours.IsNormalized(a); settled && !object.Equal(again, a) {
					t.Fatalf("seed %d: IsNormalized is true, but the object changes\nbefore %v\nafter  %v", seed, a,
						again)
				} else if !settled {
					notNormalized++
				}
				if ours.IsNormalized(tree) && !ours.Schema.Root.Has(schema.EmbeddedResources) &&
					!object.Equal(tree, a) {
					t.Fatalf("seed %d: IsNormalized is true, but the object changes\nbefore %v\nafter  %v", seed, tree,
						a)
				}
			}
		}
	}
	if filled < 5000 || refused < 20 {
		t.Errorf("changed %d, rejected %d, not normalized %d", filled, refused, notNormalized)
	}
	t.Logf("changed %d, rejected %d, not normalized %d", filled, refused, notNormalized)
}

// TestDefaultAgainstUpstream checks that Default equals upstream's defaulting. DEF-016..DEF-019
func TestDefaultAgainstUpstream(t *testing.T) {
	for seed := range uint64(3000) {
		ours, theirs, objects := randomCase(t, seed)
		for _, tree := range objects {
			a, b := object.Copy(tree), object.Copy(tree)
			ours.Default(a)
			defaulting.PruneNonNullableNullsWithoutDefaults(b, theirs)
			defaulting.Default(b, theirs)
			if !object.Equal(a, b) {
				t.Fatalf("seed %d\nobject   %v\nours     %v\nupstream %v", seed, tree, a, b)
			}
		}
	}
}

func sortedErrors(errs field.ErrorList) []string {
	out := []string{}
	for _, err := range errs {
		out = append(out, fmt.Sprintf("%s %s %s", err.Type, err.Field, err.ErrorBody()))
	}
	slices.Sort(out)
	return out
}

// TestListTypesAgainstUpstream checks that repeated items of sets and list-type maps have upstream's errors.
// SCH-051
func TestListTypesAgainstUpstream(t *testing.T) {
	found := 0
	for seed := range uint64(6000) {
		ours, theirs, objects := randomCase(t, seed)
		for _, tree := range objects {
			repeatItems(rand.New(rand.NewPCG(seed, 1)), tree)
			got, want := sortedErrors(validation.Duplicates(ours.Schema, tree, nil)),
				sortedErrors(listtype.ValidateListSetsAndMaps(nil, theirs, tree))
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: %v\nours     %q\nupstream %q", seed, tree, got, want)
			}
			found += len(got)
		}
	}
	if found < 500 {
		t.Errorf("only %d duplicates", found)
	}
}

// repeatItems appends copies of existing items to lists.
func repeatItems(r *rand.Rand, v any) {
	switch v := v.(type) {
	case object.Tree:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if list, ok := v[k].([]any); ok {
				for range r.IntN(20) {
					switch {
					case len(list) > 0 && r.IntN(3) > 0:
						list = append(list, list[r.IntN(len(list))])
					default:
						list = append(list, []any{int64(1), 1.0, "1", true, nil, object.Tree{"p0": int64(1)},
							object.Tree{"p0": 1.0, "p1": nil}, object.Tree{"p0": object.Tree{"q": 1.0}},
							object.Tree{"p0": object.Tree{"q": int64(1)}}}[r.IntN(9)])
					}
				}
				v[k] = list
			}
			repeatItems(r, v[k])
		}
	case []any:
		for i := range v {
			repeatItems(r, v[i])
		}
	}
}

// TestEmbeddedAgainstUpstream checks the validation of apiVersion, kind and metadata of embedded resources.
// SCH-045
func TestEmbeddedAgainstUpstream(t *testing.T) {
	found := 0
	for seed := range uint64(6000) {
		ours, theirs, objects := randomCase(t, seed)
		for _, tree := range objects {
			makeResources(rand.New(rand.NewPCG(seed, 2)), tree)
			got := sortedErrors(validation.EmbeddedResources(context.Background(), ours.Schema, tree))
			want := sortedErrors(objectmeta.Validate(context.Background(), nil, tree, theirs, false))
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: %v\nours     %q\nupstream %q", seed, tree, got, want)
			}
			found += len(got)
		}
	}
	if found < 500 {
		t.Errorf("only %d errors", found)
	}
}

// makeResources adds apiVersion, kind and metadata to some objects.
func makeResources(r *rand.Rand, v any) {
	switch v := v.(type) {
	case object.Tree:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			makeResources(r, v[k])
		}
		pick := func(key string, values ...any) {
			if i := r.IntN(2 * len(values)); i < len(values) {
				v[key] = values[i]
			}
		}
		pick("apiVersion", "v1", "", "a/b/c", int64(1), nil)
		pick("kind", "Pod", "", "9", "po_d", true)
		pick("metadata", object.Tree{"name": "ok"}, object.Tree{"name": "not/ok", "labels": object.Tree{"a b": "c d"}},
			"text", nil,
			object.Tree{"labels": object.Tree{"a": int64(1)}}, object.Tree{"namespace": "x", "generateName": "%"})
	case []any:
		for i := range v {
			makeResources(r, v[i])
		}
	}
}
