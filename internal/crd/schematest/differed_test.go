package schematest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
)

// TestDiffered checks the cases in testdata/differed, whose results once differed from upstream's. Some files have a
// schema with an object and possibly its old state. Others have a schema with the selectable fields of a CRD, or a
// complete CRD with its old state. The files contain the cases instead of the seeds, because a change of the
// generator makes seeds useless.
// SCH-003, DEF-013, VAL-048
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
			if err := compareUpdate(object.AppendJSON(nil, crd), object.AppendJSON(nil, before), &tally{}); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			continue
		}
		if obj == nil {
			if err := compareCRD(crdOf(s, nested[[]any](c, "selectable")), &tally{}); err != nil {
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
