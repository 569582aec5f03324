package resource

import (
	"runtime"
	"testing"
	"weak"
)

// TestUnusedSchemaIsEvicted checks that a compiled schema stays cached while it is used, and is evicted afterwards.
func TestUnusedSchemaIsEvicted(t *testing.T) {
	c := &compiledSchema{raw: `{"type":"object","properties":{"a":{"type":"string"}}}`}
	first, err := c.get()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // the schema is used between the calls
		c.evictIfUnused()
		if again, _ := c.get(); again != first {
			t.Fatal("compiled again although it was in use")
		}
	}
	c.evictIfUnused()
	c.evictIfUnused()
	if c.compiled.Load() != nil {
		t.Fatal("an unused schema is still cached")
	}
	again, err := c.get()
	if err != nil || again == first || again.Fingerprint() != first.Fingerprint() {
		t.Fatalf("compiled again: got error %v, want an equal schema", err)
	}
}

func BenchmarkSchema(b *testing.B) {
	c := &compiledSchema{raw: `{"type":"object"}`}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := c.get(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestCompiledSchemaIsCollected checks that a compiled schema is garbage-collected together with its kind. The
// timer for its eviction retains neither the schema nor the record that the schema points into.
func TestCompiledSchemaIsCollected(t *testing.T) {
	c := &compiledSchema{raw: `{"type":"object"}`}
	if _, err := c.get(); err != nil {
		t.Fatal(err)
	}
	pointer := weak.Make(c)
	runtime.KeepAlive(c)
	c = nil
	runtime.GC()
	if pointer.Value() != nil {
		t.Error("the compiled schema is still reachable")
	}
}
