package crd

import (
	"fmt"
	"maps"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	v1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/trellis-k8s/trellis/internal/crd/crdvalidation"
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
	return convertSpec(t, apiextensionsv1.SchemeGroupVersion, &v1beta1.CustomResourceDefinitionSpec{},
		&apiextensionsv1.CustomResourceDefinitionSpec{})
}

// toLegacyCRD converts a CRD from v1 to v1beta1. In the result, settings that all versions share are specified once.
func toLegacyCRD(t object.Tree) (object.Tree, error) {
	return convertSpec(t, v1beta1.SchemeGroupVersion, &apiextensionsv1.CustomResourceDefinitionSpec{},
		&v1beta1.CustomResourceDefinitionSpec{})
}

// Scheme returns upstream's types, defaults and conversions of CustomResourceDefinition. It must not be modified.
var Scheme = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	install.Install(s)
	return s
})

// convertSpec returns a copy of t at another version. The specs at both versions, in and out, are empty. Metadata and
// status are the same in both versions.
func convertSpec(t object.Tree, to schema.GroupVersion, in, out any) (object.Tree, error) {
	var internal apiextensions.CustomResourceDefinitionSpec
	err := readSpec(t, in)
	if err == nil {
		err = Scheme().Convert(in, &internal, nil)
	}
	if err == nil {
		err = Scheme().Convert(&internal, out, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("convert CustomResourceDefinition to %s: %w", to.Version, err)
	}
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(out)
	if err != nil {
		return nil, fmt.Errorf("convert %T to a tree: %w", out, err)
	}
	t = maps.Clone(t)
	t["apiVersion"], t["spec"] = to.String(), object.NormalizeNumbers(spec)
	return t, nil
}

func readSpec(t object.Tree, into any) error {
	return kjson.UnmarshalCaseSensitivePreserveInts(object.AppendJSON(nil, object.TreeAt(t, "spec")), into)
}
