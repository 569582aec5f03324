package schema

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"

	"github.com/trellis-k8s/trellis/internal/object"
)

// shapedSample is a sample of the corpus beside its schemas.
type shapedSample struct {
	ours   *Schema
	theirs *structuralschema.Structural
	tree   object.Tree
}

// BenchmarkShape brings the corpus' samples into shape (prune, nulls, embedded resources, defaults) and checks lists and
// embedded metadata, once all a round; what remains of the round is the copy both need.
func BenchmarkShape(b *testing.B) {
	samples := shapedSamples(b)
	b.Run("trellis", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for _, s := range samples {
				t := object.Copy(s.tree)
				_, _ = s.ours.Normalize(t)
				_ = s.ours.duplicates(t, nil)
				_ = s.ours.validateEmbedded(b.Context(), t)
				if !s.ours.IsNormalized(t) {
					b.Fatal(t)
				}
			}
		}
	})
	b.Run("upstream", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for _, s := range samples {
				t := object.Copy(s.tree)
				pruning.PruneWithOptions(t, s.theirs, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
				defaulting.PruneNonNullableNullsWithoutDefaults(t, s.theirs)
				_, _ = objectmeta.CoerceWithOptions(nil, t, s.theirs, false, objectmeta.CoerceOptions{ReturnUnknownFieldPaths: true})
				defaulting.Default(t, s.theirs)
				_ = listtype.ValidateListSetsAndMaps(nil, s.theirs, t)
				_ = objectmeta.Validate(b.Context(), nil, t, s.theirs, false)
			}
		}
	})
	b.Run("copy", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for _, s := range samples {
				_ = object.Copy(s.tree)
			}
		}
	})
}

// shapedSamples are some hundred samples.
func shapedSamples(b *testing.B) (out []shapedSample) {
	all := crds(b)
	byKind := map[string]shapedSample{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, v := range all[name].Spec.Versions {
			if v.Schema == nil {
				continue
			}
			theirs := structuralOf(b, v.Schema.OpenAPIV3Schema).DeepCopy()
			if err := defaulting.PruneDefaults(theirs); err != nil {
				b.Fatal(err)
			}
			gvk := all[name].Spec.Group + "/" + v.Name + " " + all[name].Spec.Names.Kind
			byKind[gvk] = shapedSample{ours: compiled(b, v.Schema.OpenAPIV3Schema), theirs: theirs}
		}
	}
	files, _ := filepath.Glob("../../../shared/corpus/samples/*/*.yaml")
	for i := 0; i < len(files); i += 8 {
		tree := readYAML(b, files[i])
		if s, ok := byKind[object.String(tree, "apiVersion")+" "+object.String(tree, "kind")]; ok {
			s.tree = tree
			out = append(out, s)
		}
	}
	return out
}

func readYAML(b *testing.B, file string) object.Tree {
	data, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	tree, _, err := object.DecodeYAML(data)
	if err != nil {
		b.Fatal(err)
	}
	return tree
}
