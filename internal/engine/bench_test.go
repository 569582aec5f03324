package engine

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// benchCronTab returns the manifest of a CronTab of about 1.9 KB. The label "shard" has 100 different values.
func benchCronTab(i int) string {
	return fmt.Sprintf(`{"apiVersion":"stable.example.com/v1","kind":"CronTab","metadata":{"name":"c%06d",
"labels":{"app":"bench","shard":"%d","tier":"backend"},
"annotations":{"example.com/owner":"team","example.com/note":%q}},
"spec":{"cronSpec":"*/5 * * * *","image":"registry.example.com/library/cron:1.2.3","replicas":3,"color":"red",
"ports":[{"name":"http","port":80},{"name":"https","port":443},{"name":"admin","port":8080}],"any":{"env":%s}}}`,
		i, i%100, strings.Repeat("n", 100), benchEnvironment())
}

func benchEnvironment() string {
	var b strings.Builder
	b.WriteByte('[')
	for i := range 14 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":"VARIABLE_%d","value":"some value that is set %d"}`, i, i)
	}
	b.WriteByte(']')
	return b.String()
}

func decodeFast(b *testing.B, text string) object.Tree {
	tree, _, err := object.DecodeJSON([]byte(text))
	if err != nil {
		b.Fatal(err)
	}
	return tree
}

func (f *fixture) fillBench(b *testing.B, n int) {
	for i := range n {
		body := verb.Body{Tree: decodeFast(b, benchCronTab(i))}
		if _, err := f.Create(f.ctx, f.cron(""), body, f.caller); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCreate measures creates of objects whose body is already decoded.
func BenchmarkCreate(b *testing.B) {
	f := newFixture(b)
	bodies := make([]object.Tree, b.N)
	for i := range bodies {
		bodies[i] = decodeFast(b, benchCronTab(i))
	}
	t := f.cron("")
	b.ReportAllocs()
	b.ResetTimer()
	for _, body := range bodies {
		if _, err := f.Create(f.ctx, t, verb.Body{Tree: body}, f.caller); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkUpdate(b *testing.B, sub string, change func(t object.Tree, i int)) {
	f := newFixture(b)
	f.fillBench(b, 1)
	t := f.cron("c000000")
	b.ReportAllocs()
	for i := range b.N {
		b.StopTimer()
		tree := f.get(t)
		change(tree, i)
		b.StartTimer()
		if _, _, err := f.Update(f.ctx, subresource(t, sub), verb.Body{Tree: tree}, f.caller); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	benchmarkUpdate(b, "", func(t object.Tree, i int) { set(t, "spec.replicas", int64(i)) })
}

func BenchmarkUpdateStatus(b *testing.B) {
	benchmarkUpdate(b, "status", func(t object.Tree, i int) { set(t, "status.replicas", int64(i)) })
}

func BenchmarkUpdateNothing(b *testing.B) {
	benchmarkUpdate(b, "", func(object.Tree, int) {})
}

func benchmarkPatch(b *testing.B, sub string, p func(i int) verb.Patch) {
	f := newFixture(b)
	f.fillBench(b, 1)
	t := subresource(f.cron("c000000"), sub)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		if _, _, err := f.Patch(f.ctx, t, p(i), f.caller); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPatchStatus(b *testing.B) {
	benchmarkPatch(b, "status", func(i int) verb.Patch {
		return verb.Patch{Type: mergePatch, Data: fmt.Appendf(nil, `{"status":{"phase":"Running","replicas":%d}}`, i)}
	})
}

func BenchmarkApply(b *testing.B) {
	config := benchCronTab(0)
	benchmarkPatch(b, "", func(i int) verb.Patch {
		return verb.Patch{Type: applyPatch, Force: true,
			Data: []byte(strings.Replace(config, `"replicas":3`, fmt.Sprintf(`"replicas":%d`, i), 1))}
	})
}

func BenchmarkDelete(b *testing.B) {
	f := newFixture(b)
	f.fillBench(b, b.N)
	t := f.cron("")
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		t.Name = fmt.Sprintf("c%06d", i)
		if _, _, err := f.Delete(f.ctx, t, metav1.DeleteOptions{}, f.caller); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	f := newFixture(b)
	f.fillBench(b, 1)
	t := f.cron("c000000")
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if _, err := f.Get(f.ctx, t, ""); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkList(b *testing.B, o read.ListOptions, want int) {
	f := newFixture(b)
	f.fillBench(b, 10000)
	t := f.cron("")
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if l, err := f.List(f.ctx, t, o); err != nil || len(l.Items) != want {
			b.Fatal(l, err)
		}
	}
}

func BenchmarkList10000(b *testing.B) { benchmarkList(b, read.ListOptions{}, 10000) }

func BenchmarkListOnePercent(b *testing.B) {
	benchmarkList(b, read.ListOptions{Labels: labelSelector(b, "shard=7")}, 100)
}

func BenchmarkListByField(b *testing.B) {
	benchmarkList(b, read.ListOptions{Fields: fieldSelector(b, "spec.color=blue")}, 0)
}

// BenchmarkListConverted lists 5,000 objects at a version to which a webhook converts them. It measures the list
// with an empty conversion cache and with a filled one. The webhook does no work.
func BenchmarkListConverted(b *testing.B) {
	f, _, _, now := newHostsFixture(b, 5000)
	f.Webhook = func(_ context.Context, to *resource.Version, objects []object.Tree) ([]object.Tree, error) {
		for _, o := range objects {
			o["apiVersion"] = to.APIVersion
		}
		return objects, nil
	}
	var epoch uint64 // a new epoch drops the cached conversions
	f.Generation = func(string) uint64 { return epoch }
	for _, warm := range []bool{false, true} {
		b.Run(fmt.Sprintf("warm=%t", warm), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !warm {
					epoch++
				}
				if l := f.list(now, read.ListOptions{}); len(l.Items) != 5000 {
					b.Fatal(len(l.Items))
				}
			}
		})
	}
}
