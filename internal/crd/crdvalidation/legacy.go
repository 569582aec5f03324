package crdvalidation

import (
	"errors"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/crd"
	"github.com/trellis-k8s/trellis/internal/object"
)

// ReadLegacy decodes js, the JSON of a CRD of apiextensions.k8s.io/v1beta1. js must not change afterwards. The
// validation of such a CRD is less strict, as in kube-apiserver up to release 1.21. Schemas are optional. They need
// not be structural if unknown fields are preserved. CRDs in the groups of Kubernetes need no approval annotation.
func ReadLegacy(js []byte) (CRD, error) {
	var legacy apiextensionsv1beta1.CustomResourceDefinition
	if err := kjson.UnmarshalCaseSensitivePreserveInts(js, &legacy); err != nil {
		return CRD{}, fmt.Errorf("decode a CustomResourceDefinition: %w", err)
	}
	out := &apiextensions.CustomResourceDefinition{}
	convert := apiextensionsv1beta1.Convert_v1beta1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition
	if err := convert(&legacy, out, nil); err != nil {
		return CRD{}, fmt.Errorf("decode a CustomResourceDefinition: %w", err)
	}
	c := CRD{CustomResourceDefinition: out, schemas: map[*schemaField]*crd.Compiled{}, legacy: true}
	return c, c.readLegacySchemas(js)
}

// readLegacySchemas compiles the schemas in js, the JSON of the CRD.
func (c CRD) readLegacySchemas(js []byte) error {
	var errs []error
	read := object.NewCursor(js)
	field := func(at **schemaField) {
		if *at != nil {
			*at = &schemaField{}
		}
		read.Members(func(key string) {
			if key == "openAPIV3Schema" && read.Kind() == '{' && *at != nil {
				compiled, err := crd.Compile([]byte(read.Raw()), false)
				c.schemas[*at] = compiled
				errs = append(errs, err)
			}
		})
	}
	spec := func(key string) {
		switch key {
		case "validation":
			field(&c.Spec.Validation)
		case "versions":
			read.Elements(func(i int) {
				read.Members(func(key string) {
					if key == "schema" {
						field(&c.Spec.Versions[i].Schema)
					}
				})
			})
		}
	}
	read.Members(func(key string) {
		if key == "spec" {
			read.Members(spec)
		}
	})
	return errors.Join(errs...)
}

// forAPIVersion returns o without the requirements that do not apply to the API version of crd.
func (o options) forAPIVersion(crd CRD) options {
	if crd.legacy {
		o.propertyTypes, o.structural = false, false
		o.contradictions = o.contradictions && !preservesUnknownFields(&crd.Spec)
	}
	return o
}

// withLegacyLeniency modifies and returns old. Upstream's validation of an update from old to crd is then as lenient
// as the validation of v1beta1, because it ignores violations that old has too. The modified old has a version
// without a schema, preserves unknown fields, and has the approval annotation of crd.
func withLegacyLeniency(old, crd *apiextensions.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	preserve := true
	old.Name, old.ResourceVersion, old.Annotations = crd.Name, crd.ResourceVersion, crd.Annotations
	old.Spec.PreserveUnknownFields, old.Spec.Validation = &preserve, nil
	old.Spec.Versions = append(old.Spec.Versions, apiextensions.CustomResourceDefinitionVersion{Name: "without"})
	return old
}
