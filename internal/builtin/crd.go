package builtin

import (
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// customResourceDefinitions is the kind that defines kinds.
func customResourceDefinitions(Config) kind {
	return kind{
		endpoint: at(apiextensionsv1.SchemeGroupVersion, &apiextensionsv1.CustomResourceDefinition{}, &apiextensionsv1.CustomResourceDefinitionList{}),
		plural:   "customresourcedefinitions", short: "crd crds", categories: "api-extensions",
		prefix:  resource.CRDPrefix,
		cluster: true, status: true, conditional: true,
		columns:  crdColumns,
		behavior: resource.Behavior{Generation: true},
	}
}

func crdColumns() []resource.Column {
	created := ageColumn()
	created.Name, created.Type, created.Age = "Created At", "date", false
	return []resource.Column{nameColumn(), created}
}
