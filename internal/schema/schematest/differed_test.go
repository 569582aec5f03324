package schematest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// SCH-003, DEF-013, VAL-048: what once differed from upstream, and must not again: testdata/differed, each with a schema and
// either an object, and maybe the one it replaces, or the selectable fields of the CRD; or with a whole CRD and the one it replaces. They are kept as text because the
// seeds and bytes that found them mean something else whenever the generator changes.
func TestDiffered(t *testing.T) {
	files, err := filepath.Glob("testdata/differed/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c, _, err := object.DecodeJSON(data)
		if err != nil {
			t.Fatal(file, err)
		}
		s, obj, old := nested[object.Tree](c, "schema"), nested[object.Tree](c, "object"), nested[object.Tree](c, "old")
		if crd, before := nested[object.Tree](c, "crd"), nested[object.Tree](c, "oldCRD"); crd != nil {
			if err := sameUpdate(object.AppendJSON(nil, crd), object.AppendJSON(nil, before), &tally{}); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			continue
		}
		if obj == nil {
			if err := sameVerdict(crdOf(s, nested[[]any](c, "selectable")), &tally{}); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			continue
		}
		p, err := newPair(object.AppendJSON(nil, s))
		if err != nil {
			t.Fatal(file, err)
		}
		if _, difference := p.write(obj, old); difference != "" {
			t.Errorf("%s: %s", file, difference)
		}
	}
}
