package crd

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

	"github.com/trellis-k8s/trellis/internal/crd/validation"
	"github.com/trellis-k8s/trellis/internal/fixture/outside"
	"github.com/trellis-k8s/trellis/internal/fixture/realcrds"
	"github.com/trellis-k8s/trellis/internal/object"
)

// normalizeSample is a sample of the corpus with its schemas.
type normalizeSample struct {
	ours   *Compiled
	theirs *structuralschema.Structural
	tree   object.Tree
}

// BenchmarkNormalize normalizes each sample of the corpus once in each round. It prunes, drops nulls, coerces
// embedded resources and fills in defaults. It also validates lists and embedded metadata. A round includes the time
// to copy the samples, which both implementations need.
func BenchmarkNormalize(b *testing.B) {
	samples := normalizeSamples(b)
	b.Run("trellis", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for _, s := range samples {
				t := object.Copy(s.tree)
				_, _ = s.ours.Normalize(t)
				_ = validation.Duplicates(s.ours.Schema, t, nil)
				_ = validation.EmbeddedResources(b.Context(), s.ours.Schema, t)
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
				pruning.PruneWithOptions(t, s.theirs, true,
					structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
				defaulting.PruneNonNullableNullsWithoutDefaults(t, s.theirs)
				_, _ = objectmeta.CoerceWithOptions(nil, t, s.theirs, false,
					objectmeta.CoerceOptions{ReturnUnknownFieldPaths: true})
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

// normalizeSamples returns several hundred samples.
func normalizeSamples(b *testing.B) (out []normalizeSample) {
	all := realcrds.All(b)
	byKind := map[string]normalizeSample{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, v := range all[name].Spec.Versions {
			if v.Schema == nil {
				continue
			}
			theirs := realcrds.Structural(b, v.Schema.OpenAPIV3Schema).DeepCopy()
			if err := defaulting.PruneDefaults(theirs); err != nil {
				b.Fatal(err)
			}
			gvk := all[name].Spec.Group + "/" + v.Name + " " + all[name].Spec.Names.Kind
			byKind[gvk] = normalizeSample{ours: compiled(b, v.Schema.OpenAPIV3Schema), theirs: theirs}
		}
	}
	files, _ := filepath.Glob(outside.Path("corpus/samples/*/*.yaml"))
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
