package resource

import (
	"runtime"
	"testing"
	"weak"
)

func TestSchemaIsLetGo(t *testing.T) {
	c := &compiledSchema{raw: `{"type":"object","properties":{"a":{"type":"string"}}}`}
	first, err := c.get()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // it stays while it is used
		c.sweep()
		if again, _ := c.get(); again != first {
			t.Fatal("compiled again although it was in use")
		}
	}
	c.sweep()
	c.sweep()
	if c.kept.Load() != nil {
		t.Fatal("kept although nobody has asked for it")
	}
	again, err := c.get()
	if err != nil || again == first || again.Fingerprint() != first.Fingerprint() {
		t.Fatalf("compiled again: %v", err)
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

// A compiled schema goes with its kind: what would sweep it later does not keep it, nor the record it points into.
func TestCompiledSchemaGoesWithItsKind(t *testing.T) {
	c := &compiledSchema{raw: `{"type":"object"}`}
	if _, err := c.get(); err != nil {
		t.Fatal(err)
	}
	gone := weak.Make(c)
	runtime.KeepAlive(c)
	c = nil
	runtime.GC()
	if gone.Value() != nil {
		t.Error("it is still there")
	}
}
