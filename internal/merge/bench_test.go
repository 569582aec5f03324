package merge

import (
	"os"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/trellis-k8s/trellis/internal/object"
)

// benchObject returns a stored object of 1.7 KB. Its managedFields are two thirds of the size.
func benchObject(b *testing.B, w *testKind) object.Tree {
	b.Helper()
	data, err := os.ReadFile("testdata/widget.json")
	if err != nil {
		b.Fatal(err)
	}
	t := decode(b, string(data))
	if _, ok := w.fields("g.io/v1", "").Parseable("g.io/v1"); !ok {
		b.Fatal("version g.io/v1 has no type")
	}
	if _, err := w.parseable.FromUnstructured(t); err != nil {
		b.Fatal(err)
	}
	return t
}

func bothSchemas(b *testing.B, run func(b *testing.B, w *testKind)) {
	b.Run("typed", func(b *testing.B) { run(b, newTestKind(b, false)) })
	b.Run("deduced", func(b *testing.B) { run(b, newTestKind(b, true)) })
}

func BenchmarkUpdate(b *testing.B) {
	bothSchemas(b, func(b *testing.B, w *testKind) {
		live := benchObject(b, w)
		f := w.fields("g.io/v1", "")
		next := object.Copy(live)
		next["spec"].(object.Tree)["image"] = "other"
		managed := object.Metadata(next)["managedFields"]
		b.ReportAllocs()
		for b.Loop() {
			object.Metadata(next)["managedFields"] = managed
			if _, err := f.Update(live, next, "bench", time.Unix(1e9, 0)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkUpdateUpstream(b *testing.B) {
	w := newTestKind(b, false)
	live := benchObject(b, w)
	m := w.upstreamManager(b, "g.io/v1", "")
	next := object.Copy(live)
	next["spec"].(object.Tree)["image"] = "other"
	managed := object.Metadata(next)["managedFields"]
	b.ReportAllocs()
	for b.Loop() {
		object.Metadata(next)["managedFields"] = managed
		m.UpdateNoErrors(&unstructured.Unstructured{Object: live}, &unstructured.Unstructured{Object: next}, "bench")
	}
}

func BenchmarkCreate(b *testing.B) {
	bothSchemas(b, func(b *testing.B, w *testKind) {
		f := w.fields("g.io/v1", "")
		obj := withoutManagedFields(benchObject(b, w))
		delete(object.Metadata(obj), "uid")
		b.ReportAllocs()
		for b.Loop() {
			delete(object.Metadata(obj), "managedFields")
			if _, err := f.Update(nil, obj, "bench", time.Unix(1e9, 0)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchConfig(live object.Tree) object.Tree {
	return object.Tree{"apiVersion": "g.io/v1", "kind": "Widget",
		"metadata": object.Tree{
			"name": "widget-00042", "namespace": "default",
			"labels":      object.Copy(object.Metadata(live)["labels"].(object.Tree)),
			"annotations": object.Copy(object.Metadata(live)["annotations"].(object.Tree)),
		},
		"spec": object.Copy(live["spec"].(object.Tree))}
}

func BenchmarkApply(b *testing.B) {
	bothSchemas(b, func(b *testing.B, w *testKind) {
		live := benchObject(b, w)
		f := w.fields("g.io/v1", "")
		config := benchConfig(live)
		config["spec"].(object.Tree)["image"] = "other"
		b.ReportAllocs()
		for b.Loop() {
			if _, err := f.Apply(live, config, "kubectl", true, time.Unix(1e9, 0)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkApplyLess measures an apply with fewer fields than the previous apply.
func BenchmarkApplyLess(b *testing.B) {
	w := newTestKind(b, false)
	live := benchObject(b, w)
	f := w.fields("g.io/v1", "")
	config := benchConfig(live)
	delete(object.Metadata(config), "annotations")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Apply(live, config, "kubectl", true, time.Unix(1e9, 0)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkApplyUpstream(b *testing.B) {
	w := newTestKind(b, false)
	live := benchObject(b, w)
	m := w.upstreamManager(b, "g.io/v1", "")
	config := benchConfig(live)
	config["spec"].(object.Tree)["image"] = "other"
	b.ReportAllocs()
	for b.Loop() {
		liveObject, applied := &unstructured.Unstructured{Object: live}, &unstructured.Unstructured{Object: config}
		if _, err := m.Apply(liveObject, applied, "kubectl", true); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkJSONPatch(b *testing.B) {
	live := benchObject(b, newTestKind(b, true))
	patch := []byte(`[{"op":"replace","path":"/spec/image","value":"other"}]`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := JSON(live, patch); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMergePatch(b *testing.B) {
	live := benchObject(b, newTestKind(b, true))
	patch := []byte(`{"spec":{"image":"other","env":{"A":null}}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := Merge(live, patch); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSetOf measures decoding the field set of a common object.
func BenchmarkSetOf(b *testing.B) {
	t := decode(b, `{"f:metadata":{"f:labels":{".":{},"f:app":{},"f:shard":{}}},
		"f:spec":{".":{},"f:hostname":{},"f:image":{},"f:labels":{".":{},"f:region":{},"f:zone":{}},
		"f:maxReplicas":{},"f:notes":{},"f:owner":{".":{},"f:email":{},"f:name":{}},
		"f:ports":{".":{},"k:{\"name\":\"http\"}":{".":{},"f:name":{},"f:port":{}},
		"k:{\"name\":\"metrics\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{}}},
		"f:replicas":{},"f:stamp":{},"f:tags":{".":{},"v:\"alpha\"":{}},"f:tier":{},"f:title":{},"f:weight":{}}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := decodeSet(t); err != nil {
			b.Fatal(err)
		}
	}
}
