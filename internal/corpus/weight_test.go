package corpus_test

import (
	"reflect"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/weight"
)

// No object of the corpus is too heavy for the default budget of a server with 512 MiB, in JSON or YAML, and neither is its update,
// which decodes the stored object as well.
func TestObjectsFitTheBudget(t *testing.T) {
	requireCorpus(t)
	const budget = 512 << 20 / 4
	for kind, table := range map[string]*weight.Table{
		"crds":    weight.NewTable(reflect.TypeFor[apiextensionsv1.CustomResourceDefinition]()),
		"samples": weight.NewTable(reflect.TypeFor[metav1.PartialObjectMetadata]()),
	} {
		heaviest, of := int64(0), ""
		for _, project := range projects(t, kind) {
			for _, f := range read(t, kind, project) {
				js := object.AppendJSON(nil, f.tree)
				one := table.JSON(js)
				if parse, _, _ := table.YAML(f.yaml); 2*one > budget || parse+one > budget {
					t.Errorf("%s weighs %d, its parser takes %d, and the budget is %d", f.path, one, parse, budget)
				}
				if one > heaviest {
					heaviest, of = one, f.path
				}
			}
		}
		t.Logf("%s: the heaviest weighs %d KiB: %s", kind, heaviest>>10, of)
	}
}
