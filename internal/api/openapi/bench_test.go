package openapi

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/fixture/outside"
	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// manyVersions returns the versions of n CRDs of about 53 KiB each. They are copies of one real CRD in different
// groups.
func manyVersions(b *testing.B, n int) (out []*resource.Version) {
	b.Helper()
	manifest, err := os.ReadFile(outside.Path("corpus/crds/prometheus-operator/probes.monitoring.coreos.com.yaml"))
	if err != nil {
		b.Skip("the corpus of real CRDs does not exist")
	}
	for i := range n {
		text := strings.ReplaceAll(string(manifest), "monitoring.coreos.com", fmt.Sprintf("g%d.example.com", i))
		if i > 0 { // share the parsed schema of the first CRD
			first := out[0]
			gv := schema.GroupVersion{Group: fmt.Sprintf("g%d.example.com", i), Version: first.GroupVersion.Version}
			out = append(out, &resource.Version{
				Definition: first.Definition, GroupVersion: gv, APIVersion: gv.String(), Served: true,
				Status: first.Status, Scale: first.Scale,
				OpenAPIV3Schema: first.OpenAPIV3Schema, Schema: first.Schema, Parseable: first.Parseable,
			})
			continue
		}
		_, d := readCRD(b, []byte(text))
		out = append(out, d.Versions[0])
	}
	b.Logf("each schema has %d bytes", len(out[0].OpenAPIV3Schema()))
	return out
}

// BenchmarkV2ThousandCRDs renders the document of v2 with 1,000 CRDs. Old versions of kubectl request this document
// first.
func BenchmarkV2ThousandCRDs(b *testing.B) {
	versions := manyVersions(b, 1000)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		d, err := newDocument(v2, versions)
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(d.text())))
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.ReportMetric(float64(m.HeapSys)/(1<<20), "heap-MiB")
}

// BenchmarkHashThousandCRDs computes the hashes for the first request of the index of v3, with 1,000 CRDs.
func BenchmarkHashThousandCRDs(b *testing.B) {
	versions := manyVersions(b, 1000)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		for _, v := range versions {
			if _, err := (&entry{versions: []*resource.Version{v}}).hash(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkV3(b *testing.B) {
	for name, versions := range map[string][]*resource.Version{"custom": manyVersions(b, 1),
		"core": builtinVersions("")} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				d, err := newDocument(v3, versions)
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(len(d.text())))
			}
		})
	}
}

func BenchmarkProtobuf(b *testing.B) {
	for _, e := range []edition{v2, v3} {
		b.Run(fmt.Sprintf("v%d", e), func(b *testing.B) {
			var all []*resource.Version
			for _, d := range kinds.Definitions(kinds.Config{}) {
				all = append(all, d.Versions...)
			}
			d, err := newDocument(e, append(all, manyVersions(b, 10)...))
			if err != nil {
				b.Fatal(err)
			}
			text := d.text()
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := newTranscoder(e).encode(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
