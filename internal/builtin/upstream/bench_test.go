package upstream

import (
	"encoding/json"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// BenchmarkCreate takes an object from the body to what is stored.
func BenchmarkCreate(b *testing.B) {
	for _, s := range samples(b) {
		switch s.name {
		case "coordination.k8s.io-v1-Lease", "v1-Event", "v1-ConfigMap", "v1-Pod":
		default:
			continue
		}
		b.Run(s.name, func(b *testing.B) {
			w, body := &steps{t: b, endpoint: s.endpoint}, s.json(b)
			ctx := w.context("create", "", s.object)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.create(ctx, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSteps takes the same way apart, for a Pod.
func BenchmarkSteps(b *testing.B) {
	var s *sample
	for _, s = range samples(b) {
		if s.name == "v1-Pod" {
			break
		}
	}
	w, body, c := &steps{t: b, endpoint: s.endpoint}, s.json(b), s.endpoint.Kind.Create()
	ctx := w.context("create", "", s.object)
	obj := w.read(body)
	obj.SetUID("uid")
	obj.SetCreationTimestamp(born)
	c.Prepare(ctx, obj)
	stored, err := s.endpoint.Kind.Stored(obj)
	if err != nil {
		b.Fatal(err)
	}
	tree, err := resource.ToTree(stored)
	if err != nil {
		b.Fatal(err)
	}
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"read", func() { _, _, _ = s.endpoint.Type.Read(body) }},
		{"default and convert", func() { w.read(body) }},
		{"prepare", func() { c.Prepare(ctx, obj) }},
		{"validate", func() { c.Validate(ctx, obj) }},
		{"warn", func() { c.Warnings(ctx, obj) }},
		{"convert back", func() { _, _ = s.endpoint.Kind.Stored(obj) }},
		{"tree", func() { _, _ = resource.ToTree(stored) }},
		{"pack", func() { object.Pack(tree, 0) }},
		{"marshal", func() { _, _ = json.Marshal(stored) }},
		{"row", func() { _, _ = s.endpoint.Kind.Row(obj) }},
	} {
		b.Run(step.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				step.do()
			}
		})
	}
}
