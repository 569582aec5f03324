package kinds_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/trellis-k8s/trellis/internal/kinds"
)

// BenchmarkCreateService creates a Service in a store with many others, whose addresses are in a large range.
func BenchmarkCreateService(b *testing.B) {
	for _, others := range []int{10, 10_000} {
		for _, kind := range []string{"ClusterIP", "NodePort"} {
			b.Run(fmt.Sprintf("%s/%d", kind, others), func(b *testing.B) {
				c := serveCluster(b, kinds.Config{ServiceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/12")}})
				v, n := c.version("v1", "Service"), 0
				create := func(kind string) {
					n++
					body := c.body(v,
						fmt.Sprintf(
							`{"metadata":{"name":"s%d"},"spec":{"type":%q,"selector":{"app":"a"},"ports":[{"port":80}]}}`, n, kind))
					if _, err := c.Engine.Create(b.Context(), c.at(v, "", ""), body, c.by()); err != nil {
						b.Fatal(err)
					}
				}
				for range others {
					create("ClusterIP")
				}
				b.ReportAllocs()
				for b.Loop() {
					create(kind)
				}
			})
		}
	}
}
