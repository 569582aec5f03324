package api

import (
	"net/http"
	"testing"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
)

// BenchmarkProtobufEvents encodes the event of a Pod for three watches, as protobuf.
func BenchmarkProtobufEvents(b *testing.B) {
	h := newHarness(b)
	h.want(http.StatusCreated, "POST", pods, podJSON)
	o, err := h.server.engine.Get(b.Context(), verb.Target{Version: h.server.live.Load().Find("", "v1", "pods"),
		Namespace: "default", Name: "p"}, "")
	if err != nil {
		b.Fatal(err)
	}
	watching := &events{request: &request{server: h.server, media: media{offer: offers(false)[2]}}}
	var frame []byte
	b.ReportAllocs()
	for b.Loop() {
		o.Revision++
		for range 3 {
			if frame, err = watching.append(frame[:0], read.WatchEvent{Type: "MODIFIED", Object: o}); err != nil {
				b.Fatal(err)
			}
		}
	}
}
