package crdvalidation

import (
	"fmt"
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/object"
)

// CRD is a decoded CustomResourceDefinition for validation.
type CRD struct {
	*apiextensions.CustomResourceDefinition
	json   []byte      // source of the CRD
	read   *schemaJSON // the schemas; nil means that they must be read from json
	legacy bool        // the source is of apiextensions.k8s.io/v1beta1
}

// Read decodes js, the JSON of a CRD of apiextensions.k8s.io/v1. js must not change afterwards.
func Read(js []byte) (CRD, error) {
	var v1 apiextensionsv1.CustomResourceDefinition
	if err := kjson.UnmarshalCaseSensitivePreserveInts(js, &v1); err != nil {
		return CRD{}, fmt.Errorf("decode a CustomResourceDefinition: %w", err)
	}
	out := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&v1, out,
		nil); err != nil {
		return CRD{}, fmt.Errorf("decode a CustomResourceDefinition: %w", err)
	}
	return CRD{CustomResourceDefinition: out, json: js}, nil
}

// schemaJSON holds the JSON of the schemas of a CRD. nil means no schema.
type schemaJSON struct {
	top      []byte // the schema of all versions
	versions [][]byte
}

func (c CRD) schemas() (all schemaJSON) {
	if c.read != nil {
		return *c.read
	}
	read := object.NewCursor(c.json)
	raw := func(into *[]byte) {
		read.Members(func(key string) {
			if key == "openAPIV3Schema" && read.Kind() == '{' {
				*into = []byte(read.Raw())
			}
		})
	}
	below := func(want string, next func()) func(string) {
		return func(key string) {
			if key == want {
				next()
			}
		}
	}
	read.Members(below("spec", func() {
		read.Members(func(key string) {
			switch key {
			case "validation":
				raw(&all.top)
			case "versions":
				read.Elements(func(i int) {
					all.versions = append(all.versions, nil)
					read.Members(below("schema", func() { raw(&all.versions[i]) }))
				})
			}
		})
	}))
	if !c.legacy && len(all.versions) > 0 {
		all.top = all.versions[0]
	}
	return all
}

// all returns the schemas of the versions and the schema at the top of spec.
func (s schemaJSON) all() [][]byte { return append(slices.Clone(s.versions), s.top) }
