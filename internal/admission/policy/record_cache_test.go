package policy

import (
	"runtime"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// What was decoded of a state that nobody has any longer is forgotten, and of the others it is not.
func TestDecodedIsForgotten(t *testing.T) {
	d := recordCache[*int]{}
	kept := &storage.Record{Key: "kept"}
	for _, rec := range []*storage.Record{kept, {Key: "gone"}, {Key: "gone too"}} {
		for _, at := range []string{"v1", "v2"} {
			for range 2 {
				if _, err := d.get(rec, at, func() (*int, error) { return new(int), nil }); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	size := func() int {
		d.mu.RLock()
		defer d.mu.RUnlock()
		return len(d.entries)
	}
	for deadline := time.Now().Add(20 * time.Second); size() > 2; runtime.GC() {
		if time.Now().After(deadline) {
			t.Fatalf("%d are known", size())
		}
	}
	if _, err := d.get(kept, "v1", func() (*int, error) { t.Error("it was forgotten"); return nil, nil }); err != nil {
		t.Fatal(err)
	}
	runtime.KeepAlive(kept)
}
