package kinds

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/kinds/crdvalidation"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// A CRD has a legacy form, apiextensions.k8s.io/v1beta1, which kube-apiserver served up to release 1.21: what all
// versions have in common may be said once, and a schema need not be structural or be there at all.
// It is stored as v1. Defaults and conversion are those of k8s.io/apiextensions-apiserver.

// legacyCRDs is CustomResourceDefinition as the version v1beta1 shows it.
func legacyCRDs(d *resource.Definition) *resource.Version {
	v := crdVersion(d, apiextensionsv1beta1.SchemeGroupVersion, &apiextensionsv1beta1.CustomResourceDefinition{}, &apiextensionsv1beta1.CustomResourceDefinitionList{})
	v.Default, v.Validate = defaultLegacyCRD, validateLegacyCRD
	v.ConvertTo, v.ConvertFrom = fromLegacyCRD, toLegacyCRD
	v.Deprecated, v.RemovedRelease = true, "1.22"
	v.DeprecationWarning = "apiextensions.k8s.io/v1beta1 CustomResourceDefinition is deprecated in v1.16+, unavailable in v1.22+; use apiextensions.k8s.io/v1 CustomResourceDefinition"
	return v
}

// defaultLegacyCRD leaves the status alone, which no client sets on the way that upstream defaults it for.
func defaultLegacyCRD(obj object.Tree) {
	var spec apiextensionsv1beta1.CustomResourceDefinitionSpec
	if readSpec(obj, &spec) != nil {
		return // it went through its Go type: this cannot be
	}
	apiextensionsv1beta1.SetDefaults_CustomResourceDefinitionSpec(&spec)
	if c := spec.Conversion.WebhookClientConfig; c != nil && c.Service != nil {
		apiextensionsv1beta1.SetDefaults_ServiceReference(c.Service)
	}
	if filled, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec); err == nil {
		obj["spec"] = object.WholeNumbers(filled)
	}
}

// validateLegacyCRD looks at the form that the client has written: that both the top and a version say the same
// thing is lost in the stored one.
func validateLegacyCRD(form, obj, old object.Tree, sub string) field.ErrorList {
	js := object.AppendJSON(nil, object.Tree{"metadata": obj["metadata"], "spec": form["spec"], "status": obj["status"]})
	crd, err := crdvalidation.ReadLegacy(js)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return validateInternalCRD(crd, obj, old, sub)
}

// fromLegacyCRD makes the stored form, in which each version says all of itself.
func fromLegacyCRD(t object.Tree) (object.Tree, error) {
	var legacy apiextensionsv1beta1.CustomResourceDefinitionSpec
	var hub apiextensions.CustomResourceDefinitionSpec
	var v1 apiextensionsv1.CustomResourceDefinitionSpec
	err := readSpec(t, &legacy)
	if err == nil {
		err = apiextensionsv1beta1.Convert_v1beta1_CustomResourceDefinitionSpec_To_apiextensions_CustomResourceDefinitionSpec(&legacy, &hub, nil)
	}
	if err == nil {
		err = apiextensionsv1.Convert_apiextensions_CustomResourceDefinitionSpec_To_v1_CustomResourceDefinitionSpec(&hub, &v1, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("builtin: convert a CRD to v1: %w", err)
	}
	return withSpec(t, apiextensionsv1.SchemeGroupVersion.String(), &v1)
}

// toLegacyCRD says once what all versions have in common.
func toLegacyCRD(t object.Tree) (object.Tree, error) {
	var v1 apiextensionsv1.CustomResourceDefinitionSpec
	var hub apiextensions.CustomResourceDefinitionSpec
	var legacy apiextensionsv1beta1.CustomResourceDefinitionSpec
	err := readSpec(t, &v1)
	if err == nil {
		err = apiextensionsv1.Convert_v1_CustomResourceDefinitionSpec_To_apiextensions_CustomResourceDefinitionSpec(&v1, &hub, nil)
	}
	if err == nil {
		err = apiextensionsv1beta1.Convert_apiextensions_CustomResourceDefinitionSpec_To_v1beta1_CustomResourceDefinitionSpec(&hub, &legacy, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("builtin: convert a CRD to v1beta1: %w", err)
	}
	return withSpec(t, apiextensionsv1beta1.SchemeGroupVersion.String(), &legacy)
}

func readSpec(t object.Tree, into any) error {
	return kjson.UnmarshalCaseSensitivePreserveInts(object.AppendJSON(nil, tree(t, "spec")), into)
}

// withSpec is a copy of t with another spec. Metadata and status are the same in both forms.
func withSpec(t object.Tree, apiVersion string, spec any) (object.Tree, error) {
	converted, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		return nil, fmt.Errorf("builtin: tree of %T: %w", spec, err)
	}
	out := make(object.Tree, len(t))
	for k, v := range t {
		out[k] = v
	}
	out["apiVersion"], out["spec"] = apiVersion, object.WholeNumbers(converted)
	return out, nil
}
