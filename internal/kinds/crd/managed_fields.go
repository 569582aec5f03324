package crd

import (
	"fmt"
	"maps"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// statusManager is the field manager of the status that the server writes to CRDs.
const statusManager = "kube-apiserver"

var exceptSpec = merge.Except("spec")

// crdManagedFields returns settings for updates of the managed fields of a CRD when the server writes the status of
// the CRD.
func crdManagedFields(d *resource.Definition) merge.ManagedFields {
	return merge.ManagedFields{
		APIVersion:  apiextensionsv1.SchemeGroupVersion.String(),
		Kind:        "CustomResourceDefinition",
		Subresource: "status",
		Parseable: func(apiVersion string) (typed.ParseableType, bool) {
			for _, v := range d.Versions {
				if v.APIVersion == apiVersion {
					p, err := v.Parseable()
					return p, err == nil
				}
			}
			return typed.ParseableType{}, false
		},
		Convert:     convertCRD,
		Reset:       func(string) fieldpath.Filter { return exceptSpec },
		AtomicLists: []string{"spec.versions"},
	}
}

// convertCRD returns t at another version. It does not modify t.
func convertCRD(t object.Tree, apiVersion string) (object.Tree, error) {
	from := object.String(t, "apiVersion")
	switch {
	case from == apiVersion:
		return t, nil
	case apiVersion == apiextensionsv1.SchemeGroupVersion.String():
		return fromLegacyCRD(t)
	case apiVersion == apiextensionsv1beta1.SchemeGroupVersion.String():
		return toLegacyCRD(t)
	}
	return nil, fmt.Errorf("convert CustomResourceDefinition: unknown version %s", apiVersion)
}

// recordManagers updates the managed fields of obj after the server has changed the status. The parameter before is
// the status before this change. The metadata of obj is replaced by a copy.
func (s crdStatus) recordManagers(obj, before object.Tree) error {
	if object.Equal(before, obj["status"]) {
		return nil
	}
	obj["metadata"] = maps.Clone(object.EnsureMetadata(obj))
	live := maps.Clone(obj)
	live["metadata"], live["status"] = maps.Clone(object.Metadata(obj)), before
	_, err := s.managers.Update(live, obj, statusManager, s.now())
	return err
}
