package record

import (
	"context"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// TestConversionCacheLimit checks that the conversion cache does not exceed its size limit in bytes.
func TestConversionCacheLimit(t *testing.T) {
	var v conversionCache
	converted := 0
	large := func(_ context.Context, recs []*storage.Record) ([]*storage.Record, error) {
		converted++
		return []*storage.Record{{Modified: recs[0].Modified, Value: make([]byte, maxConversionBytes/10)}}, nil
	}
	at := conversionKeyAt(&resource.Version{Definition: &resource.Definition{}}, nil)
	get := func(revision int64) {
		if _, err := v.get(t.Context(), at, time.Now(), []*storage.Record{{Modified: revision}}, large); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 100 {
		get(int64(i))
	}
	if v.bytes > maxConversionBytes || len(v.byKey) != v.order.Len() || len(v.byKey) > 10 {
		t.Fatalf("got %d bytes in %d entries", v.bytes, len(v.byKey))
	}
	get(99)
	if converted != 100 {
		t.Errorf("got %d conversions after a second read of the newest, want 100", converted)
	}
	get(1)
	if converted != 101 {
		t.Errorf("got %d conversions after a second read of an old one, want 101", converted)
	}
}

// TestDroppedDuringConversion checks a conversion that is in progress when a new epoch starts. The waiting request gets
// the result, but the result is not cached.
func TestDroppedDuringConversion(t *testing.T) {
	var cache conversionCache
	v := &resource.Version{Definition: &resource.Definition{Custom: &resource.Custom{}}}
	old, _ := cache.epoch(v.Definition, 1, time.Now(), time.Hour)
	convert := func(_ context.Context, recs []*storage.Record) ([]*storage.Record, error) {
		cache.epoch(v.Definition, 2, time.Now(), time.Hour)
		return []*storage.Record{{Value: make([]byte, 10)}}, nil
	}
	out, err := cache.get(t.Context(), conversionKeyAt(v, old), time.Now(), []*storage.Record{{}}, convert)
	if err != nil || len(out[0].Value) != 10 {
		t.Fatal(out, err)
	}
	if len(cache.byKey) != 0 || cache.order.Len() != 0 || cache.bytes != 0 {
		t.Errorf(
			"got %d entries, %d in order and %d bytes in the cache, want none",
			len(cache.byKey),
			cache.order.Len(),
			cache.bytes,
		)
	}
}
