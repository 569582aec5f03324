package crd

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/controller/openapi/builder"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/applyconfigurations"
	"k8s.io/kube-openapi/pkg/schemaconv"
	smd "sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
	"github.com/trellis-k8s/trellis/internal/fixture/realcrds"
	"github.com/trellis-k8s/trellis/internal/object"
)

func compiled(t testing.TB, props *apiextensionsv1.JSONSchemaProps) *Compiled {
	t.Helper()
	js, err := json.Marshal(props)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Compile(js, false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// comparePruning prunes copies of an object with both implementations and compares the results. It returns the number
// of removed fields.
func comparePruning(t *testing.T, what string, ours *Compiled, theirs *structuralschema.Structural,
	tree object.Tree) (removed int) {
	t.Helper()
	a, b := object.Copy(tree), object.Copy(tree)
	got := ours.Prune(a)
	want := pruning.PruneWithOptions(b, theirs, true,
		structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	if !slices.Equal(got, want) {
		t.Fatalf("%s: unknown fields\nours     %q\nupstream %q\nof %v", what, got, want, tree)
	}
	if !object.Equal(a, b) {
		t.Fatalf("%s: pruned object\nours     %v\nupstream %v", what, a, b)
	}
	return len(got)
}

// randomTree returns an object that is mostly valid for n, with some unknown fields.
func randomTree(r *rand.Rand, n *schema.Node, depth int) any {
	if depth > 12 {
		return "deep"
	}
	if n == nil {
		n = &schema.Node{}
	}
	unknown := func() any {
		return []any{"x", int64(1), nil, object.Tree{"a": object.Tree{"b": "c"}},
			[]any{object.Tree{"d": int64(1)}, []any{object.Tree{"e": "f"}}},
			object.Tree{"metadata": object.Tree{"q": "r"}, "kind": "K", "apiVersion": "v1",
				"spec": object.Tree{}}}[r.IntN(6)]
	}
	switch {
	case r.IntN(12) == 0:
		return unknown()
	case n.Items != nil || n.Type == "array":
		list := []any{}
		for range r.IntN(3) {
			list = append(list, randomTree(r, n.Items, depth+1))
		}
		return list
	case n.Type != "object" && len(n.Properties) == 0 && n.Additional == nil:
		return unknown()
	}
	t := object.Tree{}
	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		if r.IntN(3) > 0 {
			t[name] = randomTree(r, n.Properties[name], depth+1)
		}
	}
	if n.Additional != nil {
		t["key"] = randomTree(r, n.Additional.Schema, depth+1)
	}
	for range r.IntN(3) {
		t[[]string{"foo", "metadata", "kind", "apiVersion", "bar"}[r.IntN(5)]] = unknown()
	}
	return t
}

// TestPruneCorpusAgainstUpstream checks that pruning removes the same fields as upstream and reports the same
// paths, for random objects of every real schema (CRD-019, CRD-059).
func TestPruneCorpusAgainstUpstream(t *testing.T) {
	removed, n := 0, 0
	all := realcrds.All(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		crd := all[name]
		if n++; n%6 != 0 && !realcrds.Whole() {
			continue
		}
		for _, v := range crd.Spec.Versions {
			if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
				continue
			}
			ours, theirs := compiled(t, v.Schema.OpenAPIV3Schema), realcrds.Structural(t, v.Schema.OpenAPIV3Schema)
			for seed := range 3 {
				r := rand.New(rand.NewPCG(uint64(seed), 7))
				tree, ok := randomTree(r, ours.Schema.Root, 0).(object.Tree)
				if ok {
					removed += comparePruning(t, name, ours, theirs, tree)
				}
			}
		}
	}
	if removed < 500 {
		t.Errorf("only %d unknown fields in all", removed)
	}
}

// randomSchema returns a structural schema.
func randomSchema(r *rand.Rand, depth int) *apiextensionsv1.JSONSchemaProps {
	yes := true
	s := &apiextensionsv1.JSONSchemaProps{}
	switch n := r.IntN(10); {
	case depth == 0 || n < 5 && depth < 6:
		s.Type = "object"
		for i := range r.IntN(4) {
			if s.Properties == nil {
				s.Properties = map[string]apiextensionsv1.JSONSchemaProps{}
			}
			name := []string{"foo", "p" + fmt.Sprint(i), "metadata", "kind"}[r.IntN(4)]
			s.Properties[name] = *randomSchema(r, depth+1)
		}
		if depth > 0 && r.IntN(4) == 0 {
			s.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: r.IntN(2) == 0}
			if r.IntN(2) == 0 {
				s.AdditionalProperties = &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true,
					Schema: randomSchema(r, depth+1)}
			}
		}
		s.XEmbeddedResource = r.IntN(5) == 0
		if mapType := []string{"atomic", "granular"}[r.IntN(2)]; r.IntN(5) == 0 {
			s.XMapType = &mapType
		}
	case n < 7 && depth < 6:
		s.Type = "array"
		s.Items = &apiextensionsv1.JSONSchemaPropsOrArray{Schema: randomSchema(r, depth+1)}
		if listType := []string{"atomic", "set"}[r.IntN(2)]; r.IntN(3) == 0 {
			s.XListType = &listType
		}
	case n == 7:
		s.XIntOrString = true
		return s
	default:
		s.Type = []string{"string", "integer", "number", "boolean"}[r.IntN(4)]
		s.Format = []string{"", "", "date-time", "byte"}[r.IntN(4)]
	}
	s.Nullable = r.IntN(6) == 0
	if r.IntN(5) == 0 {
		s.XPreserveUnknownFields = &yes
	}
	return s
}

// withoutMeta removes embedded resources inside metadata, because no valid CRD has such resources.
func withoutMeta(s *apiextensionsv1.JSONSchemaProps) {
	delete(s.Properties, "metadata")
	delete(s.Properties, "kind")
	for name, child := range s.Properties {
		withoutMeta(&child)
		s.Properties[name] = child
	}
	if s.Items != nil {
		withoutMeta(s.Items.Schema)
	}
	if a := s.AdditionalProperties; a != nil && a.Schema != nil {
		withoutMeta(a.Schema)
	}
}

// TestCoerceEmbeddedAgainstUpstream checks that the coercion of embedded resources equals upstream's. It drops
// unknown fields of ObjectMeta and rejects wrong types.
func TestCoerceEmbeddedAgainstUpstream(t *testing.T) {
	unknown, refused := 0, 0
	for seed := range 6000 {
		r := rand.New(rand.NewPCG(uint64(seed), 11))
		props := randomSchema(r, 0)
		props.XEmbeddedResource = false
		withoutMeta(props)
		ours, theirs := compiled(t, props), realcrds.Structural(t, props)
		tree, ok := randomTree(r, ours.Schema.Root, 0).(object.Tree)
		if !ok {
			continue
		}
		a, b := object.Copy(tree), object.Copy(tree)
		got, gotErr := ours.CoerceEmbedded(a)
		wantErr, want := objectmeta.CoerceWithOptions(nil, b, theirs, false,
			objectmeta.CoerceOptions{ReturnUnknownFieldPaths: true})
		if (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("seed %d: ours %v, upstream %v", seed, gotErr, wantErr)
		}
		if gotErr != nil {
			refused++ // upstream's error depends on its iteration order
			continue
		}
		unknown += len(got)
		if !slices.Equal(got, want) || !object.Equal(a, b) {
			t.Fatalf("seed %d:\nours     %q %v\nupstream %q %v", seed, got, a, want, b)
		}
	}
	if unknown == 0 || refused == 0 {
		t.Errorf("%d unknown fields, %d rejected", unknown, refused)
	}
}

func TestPruneRandomSchemasAgainstUpstream(t *testing.T) {
	for seed := range 4000 {
		r := rand.New(rand.NewPCG(uint64(seed), 3))
		props := randomSchema(r, 0)
		ours, theirs := compiled(t, props), realcrds.Structural(t, props)
		for range 3 {
			if tree, ok := randomTree(r, ours.Schema.Root, 0).(object.Tree); ok {
				comparePruning(t, fmt.Sprint("seed ", seed), ours, theirs, tree)
			}
		}
	}
}

// atoms returns a type and all types that it references, except ObjectMeta.
func atoms(s *smd.Schema, ref smd.TypeRef) any {
	if ref.NamedType != nil {
		return map[string]any{"named": *ref.NamedType, "nullable": ref.Nullable,
			"relationship": ref.ElementRelationship}
	}
	return map[string]any{"atom": atomOf(s, ref.Inlined), "nullable": ref.Nullable}
}

func atomOf(s *smd.Schema, a smd.Atom) map[string]any {
	out := map[string]any{}
	if a.Scalar != nil {
		out["scalar"] = string(*a.Scalar)
	}
	if a.List != nil {
		out["list"] = []any{a.List.ElementRelationship, a.List.Keys, atoms(s, a.List.ElementType)}
	}
	if a.Map != nil {
		fields := map[string]any{}
		for _, f := range a.Map.Fields {
			fields[f.Name] = []any{atoms(s, f.Type), f.Default}
		}
		out["map"] = []any{a.Map.ElementRelationship, fields, atoms(s, a.Map.ElementType)}
	}
	return out
}

func oursAsAtoms(t *testing.T, s *Compiled) any {
	p, err := s.Parseable()
	if err != nil {
		t.Fatal(err)
	}
	def, _ := p.Schema.FindNamedType(rootType)
	return atomOf(p.Schema, def.Atom)
}

// theirAtoms returns the types that upstream derives from the OpenAPI document of the CRD.
func theirAtoms(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, version string) any {
	doc, err := builder.BuildOpenAPIV3(crd, version, builder.Options{})
	if err != nil {
		t.Fatal(err)
	}
	converted, err := schemaconv.ToSchemaFromOpenAPI(doc.Components.Schemas, crd.Spec.PreserveUnknownFields)
	if err != nil {
		t.Fatal(err)
	}
	for name, model := range doc.Components.Schemas {
		if gvks, _ := model.Extensions["x-kubernetes-group-version-kind"].([]any); len(gvks) == 1 {
			if gvk, _ := gvks[0].(map[string]any); gvk["kind"] == crd.Spec.Names.Kind {
				def, _ := converted.FindNamedType(name)
				return atomOf(converted, def.Atom)
			}
		}
	}
	t.Fatalf("no model of %s", crd.Spec.Names.Kind)
	return nil
}

// TestParseableAgainstUpstream checks that list types, map keys, atomic maps and unknown fields have the same effect
// on merges as in upstream.
// CRD-056
func TestParseableAgainstUpstream(t *testing.T) {
	all := realcrds.All(t)
	n := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if n++; n%40 != 0 && !realcrds.Whole() {
			continue
		}
		for _, v := range all[name].Spec.Versions {
			if v.Schema == nil {
				continue
			}
			if got, want := oursAsAtoms(t, compiled(t, v.Schema.OpenAPIV3Schema)), theirAtoms(t, all[name],
				v.Name); !reflect.DeepEqual(got, want) {
				t.Fatalf("%s %s:\nours     %v\nupstream %v", name, v.Name, got, want)
			}
		}
	}
}

func TestParseableOfRandomSchemasAgainstUpstream(t *testing.T) {
	compared := 0
	for seed := range 3000 {
		r := rand.New(rand.NewPCG(uint64(seed), 5))
		props := randomSchema(r, 0)
		crd := &apiextensionsv1.CustomResourceDefinition{Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: "Foo", ListKind: "FooList",
				Plural: "foos"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1",
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: props}}},
		}}
		if len(structuralschema.ValidateStructural(nil, realcrds.Structural(t, props))) > 0 {
			continue
		}
		if compared++; compared > 60 {
			return
		}
		if got, want := oursAsAtoms(t, compiled(t, props)), theirAtoms(t, crd, "v1"); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d:\nours     %v\nupstream %v", seed, got, want)
		}
	}
	t.Fatalf("only %d structural schemas", compared)
}

// TestObjectMetaAgainstClientGo checks that the types of metadata equal client-go's.
func TestObjectMetaAgainstClientGo(t *testing.T) {
	converter := applyconfigurations.NewTypeConverter(scheme.Scheme)
	obj := &corev1.ConfigMap{}
	obj.APIVersion, obj.Kind = "v1", "ConfigMap"
	value, err := converter.ObjectToTyped(runtime.Object(obj))
	if err != nil {
		t.Fatal(err)
	}
	theirs := value.Schema()
	ours := &smd.Schema{Types: metaTypes()}
	for _, name := range []string{objectMetaType, timeType, metaPrefix + "ManagedFieldsEntry",
		metaPrefix + "OwnerReference", metaPrefix + "FieldsV1", atomicType, deducedType} {
		a, _ := ours.FindNamedType(name)
		b, ok := theirs.FindNamedType(name)
		if got, want := atomOf(ours, a.Atom), atomOf(theirs, b.Atom); !ok || !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\nours      %v\nclient-go %v", name, got, want)
		}
	}
}

func TestParseableWithoutSchemaAcceptsAnything(t *testing.T) {
	s, err := Compile(nil, false)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Parseable()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.FromUnstructured(object.Tree{"apiVersion": "a/v1", "metadata": object.Tree{"name": "x"},
		"spec": []any{int64(1)}}, typed.AllowDuplicates); err != nil {
		t.Fatal(err)
	}
}
