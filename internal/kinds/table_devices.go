package kinds

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/devicetaintrule"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"
)

// devices returns the kinds of dynamic resource allocation.
func devices(c Config) []entry {
	v1 := versions{resourcev1.SchemeGroupVersion}
	namespaces := namespaceLister{lister: c.lister(corev1.SchemeGroupVersion, "Namespace", "namespaces")}
	claim := resourceclaim.NewStrategy(namespaces, c.Authorizer)
	return []entry{
		{kind: "DeviceClass", plural: "deviceclasses", versions: v1, main: deviceclass.Strategy, returnsDeleted: true},
		{kind: "DeviceTaintRule", plural: "devicetaintrules", versions: v1, main: devicetaintrule.Strategy,
			status: devicetaintrule.StatusStrategy},
		{kind: "ResourceClaim", plural: "resourceclaims", versions: v1, main: claim,
			status: resourceclaim.NewStatusStrategy(claim), returnsDeleted: true},
		{kind: "ResourceClaimTemplate", plural: "resourceclaimtemplates", versions: v1,
			main: resourceclaimtemplate.NewStrategy(namespaces), returnsDeleted: true},
		{kind: "ResourceSlice", plural: "resourceslices", versions: v1, main: resourceslice.Strategy,
			fields: []string{"spec.driver spec.nodeName spec.pool.name"}, returnsDeleted: true},
	}
}
