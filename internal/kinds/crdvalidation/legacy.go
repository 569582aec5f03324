package crdvalidation

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	kjson "sigs.k8s.io/json"
)

// ReadLegacy decodes the JSON of a CRD of apiextensions.k8s.io/v1beta1, which must not change afterwards. Its
// validation is less strict, as in kube-apiserver up to release 1.21. Schemas are optional. They need not be
// structural if unknown fields are preserved. Groups of Kubernetes need no approval annotation.
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
	return CRD{CustomResourceDefinition: out, json: js, legacy: true}, nil
}

// forAPIVersion returns o without the requirements that do not apply to the API version of crd.
func (o options) forAPIVersion(crd CRD) options {
	if crd.legacy {
		o.propertyTypes, o.structural = false, false
		o.contradictions = o.contradictions && !preservesUnknownFields(&crd.Spec)
	}
	return o
}

// withLegacyLeniency changes old so that upstream validates its replacement by crd as leniently as v1beta1. Then
// old has a version without a schema, preserves unknown fields, and has the same approval as crd.
func withLegacyLeniency(old, crd *apiextensions.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	preserve := true
	old.Name, old.ResourceVersion, old.Annotations = crd.Name, crd.ResourceVersion, crd.Annotations
	old.Spec.PreserveUnknownFields, old.Spec.Validation = &preserve, nil
	old.Spec.Versions = append(old.Spec.Versions, apiextensions.CustomResourceDefinitionVersion{Name: "without"})
	return old
}
