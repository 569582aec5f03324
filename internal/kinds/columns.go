package kinds

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// The columns are those of kubectl get. Their descriptions are those of the fields.

func nameColumn() resource.Column {
	return resource.Column{Name: "Name", Type: "string", Format: "name",
		Description: metav1.ObjectMeta{}.SwaggerDoc()["name"], Path: []string{"metadata", "name"}}
}

func ageColumn() resource.Column {
	return resource.Column{Name: "Age", Type: "string", Age: true,
		Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"],
		Path:        []string{"metadata", "creationTimestamp"}}
}

// pathColumn returns a column with the string field at path. The cell is empty if the field is not set.
func pathColumn(name, description string, path ...string) resource.Column {
	return cellColumn(name, description, func(t object.Tree) any { return text(t, path...) })
}

func cellColumn(name, description string, cell func(object.Tree) any) resource.Column {
	return resource.Column{Name: name, Type: "string", Description: description, Cell: cell}
}

// wide returns c with a priority that makes kubectl get show the column only with -o wide.
func wide(c resource.Column) resource.Column {
	c.Priority = 1
	return c
}
