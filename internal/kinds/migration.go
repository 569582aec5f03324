package kinds

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// A controller in internal/controllers performs a StorageVersionMigration (KEP-4192). Its columns show more details
// of the progress than upstream's columns.

// migrationCondition reports whether the condition of the given type is True.
func migrationCondition(obj object.Tree, kind string) bool {
	for _, c := range list(tree(obj, "status"), "conditions") {
		if t, ok := c.(object.Tree); ok && text(t, "type") == kind {
			return text(t, "status") == "True"
		}
	}
	return false
}

func migrationColumns() []resource.Column {
	state := func(t object.Tree) any {
		for _, kind := range []string{"Succeeded", "Failed", "Running"} {
			if migrationCondition(t, kind) {
				return kind
			}
		}
		return "Pending"
	}
	name := func(t object.Tree) any {
		gr := metav1.GroupResource{Group: text(t, "spec", "resource", "group"),
			Resource: text(t, "spec", "resource", "resource")}
		return gr.String()
	}
	return []resource.Column{
		nameColumn(), cellColumn("Resource", "The resource that is migrated", name),
		cellColumn("Status", "Pending, Running, Succeeded or Failed", state),
		cellColumn("Migrated", "Number of processed objects and total number of objects", func(t object.Tree) any {
			return text(t, "metadata", "annotations", resource.MigrationProgressAnnotation)
		}),
		ageColumn(),
	}
}
