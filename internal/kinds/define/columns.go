package define

import (
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// The columns are those of kubectl get. Their descriptions are those of the fields.

// PathColumn returns a column with the string field at path. The cell is empty if the field is not set.
func PathColumn(name, description string, path ...string) resource.Column {
	return CellColumn(name, description, func(t object.Tree) any { return object.StringAt(t, path...) })
}

// CellColumn returns a column whose cells are computed from the object.
func CellColumn(name, description string, cell func(object.Tree) any) resource.Column {
	return resource.Column{Name: name, Type: "string", Description: description, Cell: cell}
}
