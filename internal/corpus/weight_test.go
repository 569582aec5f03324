package corpus_test

import (
	"reflect"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/weight"
)

// TestObjectsFitTheBudget checks that every object of the corpus can be created and updated within the default memory
// budget of a server with 512 MiB, in JSON and in YAML. An update also decodes the stored object.
func TestObjectsFitTheBudget(t *testing.T) {
	requireCorpus(t)
	const budget = 512 << 20 / 4
	for kind, table := range map[string]*weight.Table{
		"crds":    weight.NewTable(reflect.TypeFor[apiextensionsv1.CustomResourceDefinition]()),
		"samples": weight.NewTable(reflect.TypeFor[metav1.PartialObjectMetadata]()),
	} {
		largest, path := int64(0), ""
		for _, project := range projects(t, kind) {
			for _, f := range read(t, kind, project) {
				js := object.AppendJSON(nil, f.tree)
				one := table.JSON(js)
				if parse, _, _ := table.YAML(f.yaml); 2*one > budget || parse+one > budget {
					t.Errorf("%s: got %d bytes for the object and %d for its parser, want at most %d", f.path, one,
						parse, budget)
				}
				if one > largest {
					largest, path = one, f.path
				}
			}
		}
		t.Logf("%s: the largest object takes %d KiB: %s", kind, largest>>10, path)
	}
}
