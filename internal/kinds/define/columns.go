package define

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// The columns are those of kubectl get. Their descriptions are those of the fields.

// NameColumn returns the column Name.
func NameColumn() resource.Column {
	return resource.Column{Name: "Name", Type: "string", Format: "name",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["name"], Path: []string{"metadata", "name"}}
}

// AgeColumn returns the column Age.
func AgeColumn() resource.Column {
	return resource.Column{Name: "Age", Type: "string", Age: true,
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
		Path:        []string{"metadata", "creationTimestamp"}}
}

// PathColumn returns a column with the string field at path. The cell is empty if the field is not set.
func PathColumn(name, description string, path ...string) resource.Column {
	return CellColumn(name, description, func(t object.Tree) any { return object.StringAt(t, path...) })
}

// CellColumn returns a column whose cells are computed from the object.
func CellColumn(name, description string, cell func(object.Tree) any) resource.Column {
	return resource.Column{Name: name, Type: "string", Description: description, Cell: cell}
}
