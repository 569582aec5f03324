package catalog

import (
	"fmt"
	"slices"
	"testing"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// bigCRD returns a CRD whose schema has about the given size in bytes, with descriptions as in common CRDs.
func bigCRD(plural string, size int) *storage.Record {
	crd := crdTree("example.com", plural, plural)
	properties := object.Tree{}
	for i := 0; len(properties)*180 < size; i++ {
		properties[fmt.Sprint("field", i)] = object.Tree{
			"type":        "object",
			"description": "A description of the field that explains its purpose in one or two sentences.",
			"properties":  object.Tree{"name": object.Tree{"type": "string"}, "value": object.Tree{"type": "integer"}},
		}
	}
	v := crd["spec"].(object.Tree)["versions"].([]any)[0].(object.Tree)
	v["schema"] = object.Tree{"openAPIV3Schema": object.Tree{
		"type":       "object",
		"properties": object.Tree{"spec": object.Tree{"type": "object", "properties": properties}},
	}}
	v["additionalPrinterColumns"] = []any{
		object.Tree{"name": "Ready", "type": "string", "jsonPath": `.status.conditions[?(@.type=="Ready")].status`},
		object.Tree{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
	}
	return record(crd, 1)
}

func BenchmarkFromCRD53KiB(b *testing.B) {
	r := bigCRD("bigs", 53<<10)
	b.SetBytes(int64(len(r.Value)))
	b.ReportAllocs()
	for b.Loop() {
		if definition.FromCRD(r) == nil {
			b.Fatal("FromCRD returned nil")
		}
	}
}

func catalogOf(n, groups int) (*Catalog, []*storage.Record) {
	records := make([]*storage.Record, n)
	for i := range records {
		crd := crdTree(fmt.Sprintf("g%d.example.com", i%groups), fmt.Sprint("kind", i), fmt.Sprint("Kind", i))
		records[i] = record(crd, int64(i+1))
	}
	return newCatalog(nil).withRecords(slices.Values(records)), records
}

func BenchmarkUpdateAt5000CRDs(b *testing.B) {
	for _, groups := range []int{1, 5000} {
		b.Run(fmt.Sprint("groups=", groups), func(b *testing.B) {
			c, records := catalogOf(5000, groups)
			change := []*storage.Event{{Revision: 6000, Key: records[2500].Key, Record: records[2500]}}
			b.ReportAllocs()
			for b.Loop() {
				c.withChanges(change)
			}
		})
	}
}

func BenchmarkLoad10000CRDs(b *testing.B) {
	_, records := catalogOf(10000, 500)
	b.ReportAllocs()
	for b.Loop() {
		newCatalog(nil).withRecords(slices.Values(records))
	}
}

func BenchmarkFindAt5000CRDs(b *testing.B) {
	c, _ := catalogOf(5000, 500)
	b.ReportAllocs()
	for b.Loop() {
		if c.Find("g250.example.com", "v1", "kind2750") == nil {
			b.Fatal("not found")
		}
	}
}

func BenchmarkCompileSchema53KiB(b *testing.B) {
	r := bigCRD("bigs", 53<<10)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := definition.FromCRD(r).Storage.Schema(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseable53KiB(b *testing.B) {
	r := bigCRD("bigs", 53<<10)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := definition.FromCRD(r).Storage.Parseable(); err != nil {
			b.Fatal(err)
		}
	}
}
