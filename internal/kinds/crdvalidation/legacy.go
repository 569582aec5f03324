package crdvalidation

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	kjson "sigs.k8s.io/json"
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
