package crdvalidation

import (
	"os"
	"strings"
	"testing"

	upstream "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"sigs.k8s.io/yaml"
)

// crdsWithRules returns the CRDs of the corpus that have rules.
func crdsWithRules(b *testing.B) (all []CRD) {
	for i, f := range corpus(b) {
		data, err := os.ReadFile(f)
		if err != nil {
			b.Fatal(err)
		}
		if !strings.Contains(string(data), "x-kubernetes-validations") || i%4 != 0 {
			continue
		}
		js, err := yaml.YAMLToJSON(data)
		if err != nil {
			b.Fatal(err)
		}
		crd, err := prepared(js)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, crd)
	}
	return all
}

// BenchmarkCreate validates new CRDs with rules.
func BenchmarkCreate(b *testing.B) {
	all := crdsWithRules(b)
	b.Run("trellis", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for _, crd := range all {
				Create(crd)
			}
		}
	})
	b.Run("upstream", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			for _, crd := range all {
				upstream.ValidateCustomResourceDefinition(b.Context(), crd.Upstream())
			}
		}
	})
}
