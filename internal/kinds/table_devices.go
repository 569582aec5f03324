package kinds

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

	"github.com/trellis-k8s/trellis/internal/kinds/define"
)

// devices returns the kinds of dynamic resource allocation.
func devices(c Config) []define.Entry {
	v1 := versions{resourcev1.SchemeGroupVersion}
	namespaces := namespaceLister{lister: define.NewLister(c.Head, corev1.SchemeGroupVersion.WithKind("Namespace"))}
	claim := resourceclaim.NewStrategy(namespaces, c.Authorizer)
	return []define.Entry{
		{Kind: "DeviceClass", Plural: "deviceclasses", Versions: v1, Main: deviceclass.Strategy, ReturnsDeleted: true},
		{Kind: "DeviceTaintRule", Plural: "devicetaintrules", Versions: v1, Main: devicetaintrule.Strategy,
			Status: devicetaintrule.StatusStrategy},
		{Kind: "ResourceClaim", Plural: "resourceclaims", Versions: v1, Main: claim,
			Status: resourceclaim.NewStatusStrategy(claim), ReturnsDeleted: true},
		{Kind: "ResourceClaimTemplate", Plural: "resourceclaimtemplates", Versions: v1,
			Main: resourceclaimtemplate.NewStrategy(namespaces), ReturnsDeleted: true},
		{Kind: "ResourceSlice", Plural: "resourceslices", Versions: v1, Main: resourceslice.Strategy,
			Fields: []string{"spec.driver spec.nodeName spec.pool.name"}, ReturnsDeleted: true},
	}
}

// namespaceLister implements only the method Get of the client, because strategies call no other.
type namespaceLister struct {
	typedcorev1.NamespaceInterface // nil
	lister                         define.Lister
}

func (l namespaceLister) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	return define.External[*corev1.Namespace](l.lister, name)
}
