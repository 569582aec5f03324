package api

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"github.com/trellis-k8s/trellis/internal/engine"
)

// What was written is encoded once for who wrote it and for all who watch, and whatever else comes to its place is not taken for it.
func TestProtobufIsMadeOnce(t *testing.T) {
	h := newHarness(t)
	protobuf := "Accept: " + mediaProtobuf
	pod := func() engine.Object {
		o, err := h.server.engine.Get(t.Context(), engine.Target{Version: h.server.live.Load().Find("", "v1", "pods"), Namespace: "default", Name: "p"}, "")
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	answer := h.want(http.StatusCreated, "POST", pods, aPod, protobuf).Body.Bytes()
	first := pod()
	slot := &h.server.recent[first.Revision%int64(len(h.server.recent))]
	if e := slot.Load(); e == nil || e.object != first {
		t.Error("what was answered is not kept")
	}
	kept, err := h.server.recent.protobuf(first)
	if err != nil || !bytes.Equal(kept, answer) {
		t.Fatalf("%q, %v; want %q", kept, err, answer)
	}
	again, _ := h.server.recent.protobuf(first)
	if &again[0] != &kept[0] {
		t.Error("it was made once more")
	}
	watching := &events{request: &request{server: h.server, media: media{offer: offers(false)[2]}}}
	for _, text := range []string{string(kept), "what is kept"} {
		if frame, err := watching.append(nil, engine.WatchEvent{Type: "ADDED", Object: first}); err != nil || !strings.Contains(string(frame), text) {
			t.Errorf("event %q, %v; want %q in it", frame, err, text)
		}
		slot.Store(&encoded{first, func() ([]byte, error) { return []byte("what is kept"), nil }})
	}
	gone := first
	gone.Revision += int64(len(h.server.recent)) // as of a deletion that comes to the same place: the last state, at a revision of its own
	if got, _ := h.server.recent.protobuf(gone); bytes.Equal(got, kept) || string(got) == "what is kept" {
		t.Errorf("of a deletion: %q", got)
	}
	h.want(http.StatusOK, "PATCH", pods+"/p", `{"metadata":{"labels":{"changed":"yes"}}}`, "Content-Type: application/merge-patch+json", protobuf)
	second := pod()
	second.Revision = gone.Revision
	if got, _ := h.server.recent.protobuf(second); !bytes.Contains(got, []byte("changed")) {
		t.Errorf("in its place: %q", got)
	}
	large := strings.Replace(aPod, `"p"`, `"p","annotations":{"a":"`+strings.Repeat("a", largestRecent)+`"}`, 1)
	h.want(http.StatusCreated, "POST", pods, strings.Replace(large, `"p"`, `"large"`, 1), protobuf)
	for i := range h.server.recent {
		if e := h.server.recent[i].Load(); e != nil && len(e.object.Record.Value) > largestRecent {
			t.Error("a large object is kept")
		}
	}
}

// BenchmarkProtobufEvents sends a change of a Pod to three who watch.
func BenchmarkProtobufEvents(b *testing.B) {
	h := newHarness(b)
	h.want(http.StatusCreated, "POST", pods, aPod)
	o, err := h.server.engine.Get(b.Context(), engine.Target{Version: h.server.live.Load().Find("", "v1", "pods"), Namespace: "default", Name: "p"}, "")
	if err != nil {
		b.Fatal(err)
	}
	watching := &events{request: &request{server: h.server, media: media{offer: offers(false)[2]}}}
	var frame []byte
	b.ReportAllocs()
	for b.Loop() {
		o.Revision++
		for range 3 {
			if frame, err = watching.append(frame[:0], engine.WatchEvent{Type: "MODIFIED", Object: o}); err != nil {
				b.Fatal(err)
			}
		}
	}
}
