package crdvalidation

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation/field"
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
		o.requireSchemas, o.propertyTypes, o.structural = false, false, false
		o.contradictions = o.contradictions && !keepsUnknown(&crd.Spec)
	}
	return o
}

// twice refuses what is said at the top and by a version, or by all versions alike, which only the legacy
// form can.
func twice(s *apiextensions.CustomResourceDefinitionSpec, path *field.Path) (errs field.ErrorList) {
	type version = apiextensions.CustomResourceDefinitionVersion
	var alike field.ErrorList
	for _, f := range []struct {
		name, plural string
		top          bool
		says         func(*version) bool
		same         func(a, b *version) bool
	}{
		{"validation", "schemas", s.Validation != nil, func(v *version) bool { return v.Schema != nil },
			func(a, b *version) bool { return apiequality.Semantic.DeepEqual(a.Schema, b.Schema) }},
		{"subresources", "subresources", s.Subresources != nil, func(v *version) bool { return v.Subresources != nil },
			func(a, b *version) bool { return apiequality.Semantic.DeepEqual(a.Subresources, b.Subresources) }},
		{"additionalPrinterColumns", "additionalPrinterColumns", len(s.AdditionalPrinterColumns) > 0, func(v *version) bool { return len(v.AdditionalPrinterColumns) > 0 },
			func(a, b *version) bool {
				return apiequality.Semantic.DeepEqual(a.AdditionalPrinterColumns, b.AdditionalPrinterColumns)
			}},
	} {
		say, different := 0, false
		for i := range s.Versions {
			if v := &s.Versions[i]; f.says(v) {
				say++
				different = different || !f.same(v, &s.Versions[0])
			}
		}
		if f.top && say > 0 {
			errs = append(errs, field.Forbidden(path.Child(f.name), "top-level and per-version "+f.plural+" are mutually exclusive"))
		}
		if say > 0 && say == len(s.Versions) && !different {
			alike = append(alike, field.Invalid(path.Child("versions"), s.Versions, "per-version "+f.plural+" may not all be set to identical values (top-level "+f.name+" should be used instead)"))
		}
	}
	return append(errs, alike...)
}
