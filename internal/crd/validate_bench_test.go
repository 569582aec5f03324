package crd

import (
	"context"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
	"github.com/trellis-k8s/trellis/internal/fixture/realcrds"
	"github.com/trellis-k8s/trellis/internal/object"
)

// corpusVersion is a version of a real CRD with its samples.
type corpusVersion struct {
	name    string // of the CRD
	props   *apiextensionsv1.JSONSchemaProps
	js      []byte
	ours    *Compiled
	theirs  *upstream
	samples []object.Tree
}

// corpus returns all versions of real CRDs that have samples. Defaults are filled into the samples.
func corpus(t testing.TB) []*corpusVersion {
	byType := map[string]*corpusVersion{}
	all := realcrds.All(t)
	for _, file := range slices.Sorted(maps.Keys(all)) {
		crd := all[file]
		for _, v := range crd.Spec.Versions {
			if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
				continue
			}
			props := v.Schema.OpenAPIV3Schema
			js, err := json.Marshal(props)
			if err != nil {
				t.Fatal(err)
			}
			byType[crd.Spec.Group+"/"+v.Name+" "+crd.Spec.Names.Kind] = &corpusVersion{name: crd.Name + "/" + v.Name,
				props: props, js: js}
		}
	}
	files, _ := filepath.Glob(outside.Path("corpus/samples/*/*"))
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tree, _, err := object.DecodeYAML(data)
		if err != nil {
			continue
		}
		s := byType[object.String(tree, "apiVersion")+" "+object.String(tree, "kind")]
		if s == nil {
			continue
		}
		if s.ours == nil {
			s.ours, s.theirs = compiled(t, s.props), upstreamOf(t, s.props)
		}
		s.ours.Prune(tree)
		s.ours.Default(tree)
		s.samples = append(s.samples, tree)
	}
	var out []*corpusVersion
	for _, key := range slices.Sorted(maps.Keys(byType)) {
		if s := byType[key]; len(s.samples) > 0 {
			out = append(out, s)
		}
	}
	return out
}

// TestValidateCorpusAgainstUpstream checks that samples of real CRDs, complete and modified, have upstream's
// errors on create, update and update of the status. VAL-018, VAL-024
func TestValidateCorpusAgainstUpstream(t *testing.T) {
	accepted, refused := 0, 0
	for i, s := range corpus(t) {
		if i%4 != 0 && !realcrds.Whole() {
			continue
		}
		m := generator{rand.New(rand.NewPCG(uint64(i), 4))}
		for _, sample := range s.samples {
			errs := s.ours.ValidateValues(context.Background(), sample, nil)
			compareErrors(t, s.name, errs, s.theirs.validate(sample, nil), sample)
			if len(errs) == 0 {
				accepted++
			} else {
				refused++
			}
			changed, ok := m.change(object.Copy(sample)).(object.Tree)
			if !ok {
				continue
			}
			compareErrors(t, s.name+": create", s.ours.ValidateValues(context.Background(), changed, nil),
				s.theirs.validate(changed, nil), changed)
			again, ok := m.change(object.Copy(changed)).(object.Tree)
			if !ok {
				continue
			}
			compareErrors(t, s.name+": update", s.ours.ValidateValues(context.Background(), again, changed),
				s.theirs.validate(again, changed), again, changed)
			compareErrors(t, s.name+": status", s.ours.ValidateStatusValues(context.Background(), again, changed),
				s.theirs.validateStatus(again, changed), again, changed)
		}
	}
	t.Logf("%d samples accepted, %d rejected", accepted, refused)
}

func BenchmarkValidate(b *testing.B) {
	all := corpus(b)
	each(b, all, func(s *corpusVersion, t object.Tree) { s.ours.ValidateValues(context.Background(), t, nil) })
}

func BenchmarkUpstreamValidate(b *testing.B) {
	all := corpus(b)
	each(b, all, func(s *corpusVersion, t object.Tree) { s.theirs.validate(t, nil) })
}

func BenchmarkValidateUpdate(b *testing.B) {
	all := corpus(b)
	each(b, all, func(s *corpusVersion, t object.Tree) { s.ours.ValidateValues(context.Background(), t, t) })
}

func BenchmarkUpstreamValidateUpdate(b *testing.B) {
	all := corpus(b)
	each(b, all, func(s *corpusVersion, t object.Tree) { s.theirs.validate(t, t) })
}

// each runs f for every sample.
func each(b *testing.B, all []*corpusVersion, f func(*corpusVersion, object.Tree)) {
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n = 0
		for _, s := range all {
			for _, t := range s.samples {
				f(s, t)
				n++
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/object")
}

func BenchmarkCompile(b *testing.B) {
	all := corpus(b)
	b.ReportAllocs()
	for b.Loop() {
		for _, s := range all {
			if _, err := Compile(s.js, false); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkUpstreamCompile measures the work of upstream's handler when it starts to serve a version, except
// decoding.
func BenchmarkUpstreamCompile(b *testing.B) {
	all := corpus(b)
	b.ReportAllocs()
	for b.Loop() {
		for _, s := range all {
			upstreamCompile(b, s.props)
		}
	}
}

func upstreamCompile(b *testing.B, props *apiextensionsv1.JSONSchemaProps) {
	var in apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(props, &in, nil); err != nil {
		b.Fatal(err)
	}
	structural, err := structuralschema.NewStructural(&in)
	if err != nil {
		b.Fatal(err)
	}
	if err := structuraldefaulting.PruneDefaults(structural.DeepCopy()); err != nil {
		b.Fatal(err)
	}
	if _, _, err := validation.NewSchemaValidator(&in); err != nil {
		b.Fatal(err)
	}
	if status, ok := in.Properties["status"]; ok {
		if _, _, err := validation.NewSchemaValidator(&status); err != nil {
			b.Fatal(err)
		}
	}
}
