package crd

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	v1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/kinds/crdvalidation"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// kube-apiserver served the legacy version apiextensions.k8s.io/v1beta1 of CRDs up to release 1.21. In v1beta1, the
// settings that all versions share may be specified once, and a schema may be non-structural or missing. Such a CRD is
// stored as v1. The defaults and conversions are those of k8s.io/apiextensions-apiserver.

// legacyCRDs returns the version v1beta1 of CustomResourceDefinition.
func legacyCRDs(d *resource.Definition) *resource.Version {
	v := crdVersion(d, v1beta1.SchemeGroupVersion, &v1beta1.CustomResourceDefinition{},
		&v1beta1.CustomResourceDefinitionList{})
	v.Default, v.Validate = defaultLegacyCRD, validateLegacyCRD
	v.ConvertTo, v.ConvertFrom = fromLegacyCRD, toLegacyCRD
	v.Deprecated, v.RemovedRelease = true, "1.22"
	v.DeprecationWarning = "apiextensions.k8s.io/v1beta1 CustomResourceDefinition is deprecated in v1.16+, " +
		"unavailable in v1.22+; use apiextensions.k8s.io/v1 CustomResourceDefinition"
	return v
}

// defaultLegacyCRD sets upstream's defaults of the spec. Upstream also sets a default for an empty
// status.storedVersions, but no client sends such a status in v1beta1.
func defaultLegacyCRD(obj object.Tree) {
	var spec v1beta1.CustomResourceDefinitionSpec
	if readSpec(obj, &spec) != nil {
		return // unreachable, because the spec was decoded with its Go type
	}
	v1beta1.SetDefaults_CustomResourceDefinitionSpec(&spec)
	if c := spec.Conversion.WebhookClientConfig; c != nil && c.Service != nil {
		v1beta1.SetDefaults_ServiceReference(c.Service)
	}
	if filled, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec); err == nil {
		obj["spec"] = object.NormalizeNumbers(filled)
	}
}

// validateLegacyCRD validates the spec in the form that the client sent. A setting must not be specified both for all
// versions and for one version, and the stored spec no longer shows this mistake.
func validateLegacyCRD(form, obj, old object.Tree, sub string) field.ErrorList {
	js := object.AppendJSON(nil, object.Tree{"metadata": obj["metadata"], "spec": form["spec"],
		"status": obj["status"]})
	crd, err := crdvalidation.ReadLegacy(js)
	if err != nil {
		return field.ErrorList{field.InternalError(nil, err)}
	}
	return validateInternalCRD(crd, obj, old, sub)
}

// fromLegacyCRD converts a CRD from v1beta1 to v1, in which each version has all of its settings.
func fromLegacyCRD(t object.Tree) (object.Tree, error) {
	var legacy v1beta1.CustomResourceDefinitionSpec
	var internal apiextensions.CustomResourceDefinitionSpec
	var v1 apiextensionsv1.CustomResourceDefinitionSpec
	err := readSpec(t, &legacy)
	if err == nil {
		err = v1beta1.Convert_v1beta1_CustomResourceDefinitionSpec_To_apiextensions_CustomResourceDefinitionSpec(
			&legacy, &internal, nil)
	}
	if err == nil {
		err = apiextensionsv1.Convert_apiextensions_CustomResourceDefinitionSpec_To_v1_CustomResourceDefinitionSpec(
			&internal, &v1, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("convert CustomResourceDefinition to v1: %w", err)
	}
	return withSpec(t, apiextensionsv1.SchemeGroupVersion.String(), &v1)
}

// toLegacyCRD converts a CRD from v1 to v1beta1. In the result, settings that all versions share are specified once.
func toLegacyCRD(t object.Tree) (object.Tree, error) {
	var v1 apiextensionsv1.CustomResourceDefinitionSpec
	var internal apiextensions.CustomResourceDefinitionSpec
	var legacy v1beta1.CustomResourceDefinitionSpec
	err := readSpec(t, &v1)
	if err == nil {
		err = apiextensionsv1.Convert_v1_CustomResourceDefinitionSpec_To_apiextensions_CustomResourceDefinitionSpec(
			&v1, &internal, nil)
	}
	if err == nil {
		err = v1beta1.Convert_apiextensions_CustomResourceDefinitionSpec_To_v1beta1_CustomResourceDefinitionSpec(
			&internal, &legacy, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("convert CustomResourceDefinition to v1beta1: %w", err)
	}
	return withSpec(t, v1beta1.SchemeGroupVersion.String(), &legacy)
}

func readSpec(t object.Tree, into any) error {
	return kjson.UnmarshalCaseSensitivePreserveInts(object.AppendJSON(nil, object.TreeAt(t, "spec")), into)
}

// withSpec returns a copy of t with another version and spec. Metadata and status are the same in both versions.
func withSpec(t object.Tree, apiVersion string, spec any) (object.Tree, error) {
	converted, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
	if err != nil {
		return nil, fmt.Errorf("convert %T to a tree: %w", spec, err)
	}
	out := make(object.Tree, len(t))
	for k, v := range t {
		out[k] = v
	}
	out["apiVersion"], out["spec"] = apiVersion, object.NormalizeNumbers(converted)
	return out, nil
}
