package crdvalidation

import (
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// approval demands, of a CRD in a group of Kubernetes, a valid annotation that says who allowed it, unless an update leaves
// its state alone (kubernetes/enhancements pull request 1111).
func approval(crd, old *apiextensions.CustomResourceDefinition) field.ErrorList {
	if !apihelpers.IsProtectedCommunityGroup(crd.Spec.Group) {
		return nil
	}
	state, message := apihelpers.GetAPIApprovalState(crd.Annotations)
	if old != nil {
		if was, _ := apihelpers.GetAPIApprovalState(old.Annotations); was == state {
			return nil
		}
	}
	const annotation = apiextensionsv1.KubeAPIApprovedAnnotation
	path := field.NewPath("metadata", "annotations").Key(annotation)
	switch state {
	case apihelpers.APIApprovalInvalid:
		return field.ErrorList{field.Invalid(path, crd.Annotations[annotation], message)}
	case apihelpers.APIApprovalMissing:
		return field.ErrorList{field.Required(path, message)}
	}
	return nil
}
