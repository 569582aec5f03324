package schematest

import (
	"context"
	"math"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/object"
)

// cost is the time and memory of one call.
type cost struct{ nanos, allocs, bytes float64 }

// costOf measures the cost of f. It returns the lowest time of several short runs, because other processes can only
// increase the time.
func costOf(f func()) (c cost) {
	f()
	c.nanos = math.Inf(1)
	var before, after runtime.MemStats
	n := 1
	for range 7 {
		start := time.Now()
		for range n {
			f()
		}
		took := time.Since(start)
		c.nanos = min(c.nanos, float64(took)/float64(n))
		if took < 2*time.Millisecond {
			n = min(4*n, 1000)
		}
	}
	runtime.ReadMemStats(&before)
	for range n {
		f()
	}
	runtime.ReadMemStats(&after)
	c.allocs = float64(after.Mallocs-before.Mallocs) / float64(n)
	c.bytes = float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
	return c
}

// withoutRules removes the rules from a schema.
func withoutRules(v any) any {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "x-kubernetes-validations")
		for _, w := range v {
			withoutRules(w)
		}
	case []any:
		for _, w := range v {
			withoutRules(w)
		}
	}
	return v
}

// BenchmarkAgainstUpstream measures both implementations for each version of a CRD that has samples. It measures the
// compilation of the schema, and the normalization and validation of an object on create, without and with rules. The
// results are upstream's costs divided by Trellis's costs, as the geometric mean over all versions and as the
// minimum.
func BenchmarkAgainstUpstream(b *testing.B) {
	all := kinds(b, "samples")
	// The costs do not include the creation of upstream's validators and copies of objects. Upstream's compilation
	// decodes and converts the schema, and then creates the structural schema and the validator. docs/benchmarks.md
	// has results.
	ctx := context.Background()
	create := func(k *kind) (ours, theirs func()) {
		p, err := newPair(object.AppendJSON(nil, k.schema))
		if err != nil {
			b.Fatal(err)
		}
		var shaped []object.Tree
		for _, s := range k.objects {
			if t, difference := p.normalize(s.tree); t != nil && difference == "" {
				shaped = append(shaped, t)
			}
		}
		if len(shaped) == 0 {
			return nil, nil
		}
		return func() {
				for _, t := range shaped {
					if _, err := p.ours.Normalize(t); err != nil {
						b.Fatal(err)
					}
					p.ours.Validate(ctx, t, nil, nil)
				}
			}, func() {
				for _, t := range shaped {
					if _, err := p.theirs.normalize(t, true); err != nil {
						b.Fatal(err)
					}
					p.theirs.validate(ctx, t, nil)
				}
			}
	}
	b.Run("create", func(b *testing.B) {
		comparePairs(b, all, func(k *kind) (ours, theirs func()) {
			return create(&kind{name: k.name, schema: withoutRules(copied(k.schema)).(object.Tree), objects: k.objects})
		})
	})
	b.Run("createWithRules", func(b *testing.B) { comparePairs(b, all, create) })
	b.Run("compile", func(b *testing.B) {
		comparePairs(b, all, func(k *kind) (ours, theirs func()) {
			// More schemas than crd.Compile keeps, so that each call compiles one.
			var texts [5][]byte
			for i := range texts {
				s := withoutRules(copied(k.schema)).(object.Tree)
				s["description"] = strconv.Itoa(i)
				texts[i] = object.AppendJSON(nil, s)
			}
			next := 0
			return func() {
					next = (next + 1) % len(texts)
					if _, err := crd.Compile(texts[next], false); err != nil {
						b.Fatal(err)
					}
				}, func() {
					if _, err := newUpstream(texts[0], false); err != nil {
						b.Fatal(err)
					}
				}
		})
	})
}

func comparePairs(b *testing.B, all []*kind, pair func(*kind) (ours, theirs func())) {
	for b.Loop() {
		var nanos, allocs, bytes, n float64
		worst, at := math.Inf(1), ""
		for _, k := range all {
			if len(k.objects) == 0 {
				continue
			}
			ours, theirs := pair(k)
			if ours == nil {
				continue
			}
			x, y := costOf(ours), costOf(theirs)
			n++
			nanos += math.Log(y.nanos / x.nanos)
			allocs += math.Log((y.allocs + 1) / (x.allocs + 1))
			bytes += math.Log((y.bytes + 1) / (x.bytes + 1))
			if r := y.nanos / x.nanos; r < worst {
				worst, at = r, k.name
			}
		}
		b.ReportMetric(math.Exp(nanos/n), "x-time")
		b.ReportMetric(math.Exp(allocs/n), "x-allocs")
		b.ReportMetric(math.Exp(bytes/n), "x-bytes")
		b.ReportMetric(worst, "x-time-worst")
		b.ReportMetric(n, "kinds")
		b.Logf("least for %s", at)
	}
}
