package crdvalidation

import (
	"fmt"
	"net/url"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ApprovalAnnotation says who allowed a CRD in a group that belongs to Kubernetes.
const ApprovalAnnotation = "api-approved.kubernetes.io"

// Approval is the state of ApprovalAnnotation: the reason of the condition
// KubernetesAPIApprovalPolicyConformant.
type Approval string

// The states of ApprovalAnnotation.
const (
	Approved        Approval = "ApprovedAnnotation"
	Unapproved      Approval = "UnapprovedAnnotation"
	MissingApproval Approval = "MissingAnnotation"
	InvalidApproval Approval = "InvalidAnnotation"
)

// IsProtected is true of groups that need an approval (kubernetes/enhancements pull request 1111).
func IsProtected(group string) bool {
	return group == "k8s.io" || strings.HasSuffix(group, ".k8s.io") ||
		group == "kubernetes.io" || strings.HasSuffix(group, ".kubernetes.io")
}

// ApprovalOf judges the value of ApprovalAnnotation.
func ApprovalOf(annotation string) (state Approval, message string) {
	const see = ", see https://github.com/kubernetes/enhancements/pull/1111"
	if annotation == "" {
		return MissingApproval, fmt.Sprintf("protected groups must have approval annotation %q", ApprovalAnnotation) + see
	}
	if strings.HasPrefix(annotation, "unapproved") {
		return Unapproved, fmt.Sprintf("not approved: %q", annotation)
	}
	if u, err := url.ParseRequestURI(annotation); err == nil && u.Host != "" && u.Scheme != "" {
		return Approved, "approved in " + annotation
	}
	return InvalidApproval, fmt.Sprintf(`protected groups must have approval annotation %q with either a URL or a reason starting with "unapproved"`, ApprovalAnnotation) + see
}

// approval demands a valid annotation unless an update leaves its state alone.
func approval(crd, old *apiextensions.CustomResourceDefinition) field.ErrorList {
	if !IsProtected(crd.Spec.Group) {
		return nil
	}
	value := crd.Annotations[ApprovalAnnotation]
	state, message := ApprovalOf(value)
	if old != nil {
		if was, _ := ApprovalOf(old.Annotations[ApprovalAnnotation]); was == state {
			return nil
		}
	}
	path := field.NewPath("metadata", "annotations").Key(ApprovalAnnotation)
	switch state {
	case InvalidApproval:
		return field.ErrorList{field.Invalid(path, value, message)}
	case MissingApproval:
		return field.ErrorList{field.Required(path, message)}
	}
	return nil
}
