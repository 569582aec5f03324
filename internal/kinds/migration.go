package kinds

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/kinds/define"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// A controller in internal/controllers performs a StorageVersionMigration (KEP-4192). Its columns show more details
// of the progress than upstream's columns.

func migrationColumns() []resource.Column {
	state := func(t object.Tree) any {
		for _, kind := range []string{"Succeeded", "Failed", "Running"} {
			if object.HasCondition(object.TreeAt(t, "status"), kind) {
				return kind
			}
		}
		return "Pending"
	}
	name := func(t object.Tree) any {
		gr := metav1.GroupResource{Group: object.StringAt(t, "spec", "resource", "group"),
			Resource: object.StringAt(t, "spec", "resource", "resource")}
		return gr.String()
	}
	return []resource.Column{
		resource.NameColumn(), define.CellColumn("Resource", "The resource that is migrated", name),
		define.CellColumn("Status", "Pending, Running, Succeeded or Failed", state),
		define.PathColumn("Migrated", "Number of processed objects and total number of objects",
			"metadata", "annotations", resource.MigrationProgressAnnotation),
		resource.AgeColumn("string"),
	}
}
