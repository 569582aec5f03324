package kinds_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/kinds"
)

// BenchmarkBind binds a Pod to one of 1,000 nodes with 5,000 Pods or more in total. The Pods on its node have changed
// since the last binding to it.
func BenchmarkBind(b *testing.B) {
	for _, guarded := range []bool{false, true} {
		c := serveCluster(b, kinds.Config{UnguardedBindings: !guarded})
		v, n := c.version("v1", "Pod"), 0
		bindings := v.Subresource("binding").Body
		for i := range 1000 {
			name := fmt.Sprintf("n%d", i)
			c.mustCreate(c.version("v1", "Node"), name, `{metadata: {name: `+name+
				`}, status: {allocatable: {cpu: "32", memory: 256Gi, pods: "11000", ephemeral-storage: 500Gi}}}`)
		}
		create := func() (pod string) {
			n++
			d, err := v.Type.Decode(fmt.Appendf(nil, writtenPod, n))
			if err != nil {
				b.Fatal(err)
			}
			if _, err := c.Engine.Create(b.Context(), c.at(v, "", ""), verb.Body{Tree: d.Tree, Internal: d.Internal,
				Strict: d.Strict, Typed: true}, c.by()); err != nil {
				b.Fatal(err)
			}
			return fmt.Sprintf("a%d", n)
		}
		bind := func(pod, text string) {
			d, err := bindings.Type.Decode([]byte(text))
			if err != nil {
				b.Fatal(err)
			}
			if _, _, err := c.Engine.PostSubresource(b.Context(), c.at(v, pod, "binding"),
				verb.Body{Tree: d.Tree, Internal: d.Internal, Typed: true}, c.by()); err != nil {
				b.Fatal(err)
			}
		}
		binding := func(pod string) string {
			return fmt.Sprintf(
				`{"apiVersion":"v1","kind":"Binding","metadata":{"name":%q},"target":{"kind":"Node","name":"n%d"}}`,
				pod, n%1000)
		}
		started := func(pod string) {
			p := verb.Patch{Type: types.StrategicMergePatchType, Data: fmt.Appendf(nil, patchedStatus, n)}
			if _, _, err := c.Engine.Patch(b.Context(), c.at(v, pod, "status"), p, c.by()); err != nil {
				b.Fatal(err)
			}
		}
		for range 5000 {
			pod := create()
			bind(pod, binding(pod))
			started(pod)
		}
		b.Run(fmt.Sprintf("guarded=%v", guarded), func(b *testing.B) {
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; {
				b.StopTimer() // StopTimer empties the allocator's caches, so it is called only once in 1,000 bindings
				var pods, texts []string
				for range min(1000, b.N-done) {
					pods = append(pods, create())
					texts = append(texts, binding(pods[len(pods)-1]))
				}
				b.StartTimer()
				for i, pod := range pods {
					bind(pod, texts[i])
				}
				b.StopTimer()
				for _, pod := range pods {
					started(pod)
				}
				done += len(pods)
				b.StartTimer()
			}
		})
	}
}
