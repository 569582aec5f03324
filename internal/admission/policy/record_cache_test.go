package policy

import (
	"runtime"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// TestRecordCacheEvicts checks that values are evicted when their record is garbage-collected, and only then.
func TestRecordCacheEvicts(t *testing.T) {
	d := recordCache[*int]{}
	live := &storage.Record{Key: "live"}
	for _, rec := range []*storage.Record{live, {Key: "unreferenced"}, {Key: "unreferenced too"}} {
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
			t.Fatalf("got %d entries, want 2", size())
		}
	}
	if _, err := d.get(live, "v1", func() (*int, error) {
		t.Error("the value was evicted")
		return nil,
			nil
	}); err != nil {
		t.Fatal(err)
	}
	runtime.KeepAlive(live)
}
