package api

import (
	"net/http"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/trellis-k8s/trellis/internal/api/encoding"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
)

// BenchmarkProtobufEvents encodes the event of a Pod for three watches, as protobuf.
func BenchmarkProtobufEvents(b *testing.B) {
	h := newHarness(b)
	h.want(http.StatusCreated, "POST", pods, podJSON)
	o, err := h.engine.Get(b.Context(), verb.Target{Version: h.engine.Live.Load().Find("", "v1", "pods"),
		Namespace: "default", Name: "p"}, "")
	if err != nil {
		b.Fatal(err)
	}
	m, _ := h.server.negotiator.Find(runtime.ContentTypeProtobuf, o.Version)
	watching := encoding.NewEvents(&m, nil)
	var frame []byte
	b.ReportAllocs()
	for b.Loop() {
		o.Revision++
		for range 3 {
			if frame, err = watching.Append(frame[:0], read.WatchEvent{Type: "MODIFIED", Object: o}); err != nil {
				b.Fatal(err)
			}
		}
	}
}
