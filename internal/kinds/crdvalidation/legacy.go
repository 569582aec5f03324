package crdvalidation

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	kjson "sigs.k8s.io/json"
)

// ReadLegacy reads the JSON of a CRD of apiextensions.k8s.io/v1beta1, which must not change afterwards. Less is asked of
// it, as kube-apiserver did up to release 1.21: neither schemas, nor that they are structural where unknown
// fields are preserved, nor the approval of a group of Kubernetes.
func ReadLegacy(js []byte) (CRD, error) {
	var legacy apiextensionsv1beta1.CustomResourceDefinition
	if err := kjson.UnmarshalCaseSensitivePreserveInts(js, &legacy); err != nil {
		return CRD{}, fmt.Errorf("read a CRD: %w", err)
	}
	out := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1beta1.Convert_v1beta1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&legacy, out, nil); err != nil {
		return CRD{}, fmt.Errorf("read a CRD: %w", err)
	}
	return CRD{CustomResourceDefinition: out, json: js, legacy: true}, nil
}

// asked is what of o is asked of crd.
func (o options) asked(crd CRD) options {
	if crd.legacy {
		o.propertyTypes, o.structural = false, false
		o.contradictions = o.contradictions && !keepsUnknown(&crd.Spec)
	}
	return o
}

// asLegacy makes of old one that upstream lets be replaced by crd with the leniency that it had for v1beta1: it has a
// version without a schema, preserves unknown fields, and is approved as crd is.
func asLegacy(old, crd *apiextensions.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	preserve := true
	old.Name, old.ResourceVersion, old.Annotations = crd.Name, crd.ResourceVersion, crd.Annotations
	old.Spec.PreserveUnknownFields, old.Spec.Validation = &preserve, nil
	old.Spec.Versions = append(old.Spec.Versions, apiextensions.CustomResourceDefinitionVersion{Name: "without"})
	return old
}
