package upstream

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/devicetaintrule"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"
)

// devices is the kinds by which Pods get at devices.
func devices(c Config) []line {
	v1, namespaces := versions{resourcev1.SchemeGroupVersion}, namespaceReader{get: c.Namespace}
	claim := resourceclaim.NewStrategy(namespaces, c.Authorizer)
	return []line{
		{kind: "DeviceClass", plural: "deviceclasses", at: v1, main: deviceclass.Strategy, returned: true},
		{kind: "DeviceTaintRule", plural: "devicetaintrules", at: v1, main: devicetaintrule.Strategy, status: devicetaintrule.StatusStrategy},
		{kind: "ResourceClaim", plural: "resourceclaims", at: v1, main: claim, status: resourceclaim.NewStatusStrategy(claim), attributes: resourceclaim.GetAttrs, returned: true},
		{kind: "ResourceClaimTemplate", plural: "resourceclaimtemplates", at: v1, main: resourceclaimtemplate.NewStrategy(namespaces), attributes: resourceclaimtemplate.GetAttrs, returned: true},
		{kind: "ResourceSlice", plural: "resourceslices", at: v1, main: resourceslice.Strategy, attributes: resourceslice.GetAttrs, returned: true},
	}
}

// namespaceReader is as much of a client as the strategies use: Get.
type namespaceReader struct {
	typedcorev1.NamespaceInterface // nil
	get                            func(context.Context, string) (*corev1.Namespace, error)
}

func (r namespaceReader) Get(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	return r.get(ctx, name)
}
