package upstream

import (
	"context"
	"net"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/servicecidrs"
	"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr"
)

// RunServiceCIDRs runs upstream's controllers of ServiceCIDRs until ctx is done. They maintain the default
// ServiceCIDR, or report that it differs from the configured ranges. They write the condition Ready of all
// ServiceCIDRs, and keep a deleted one while Services use its addresses.
func RunServiceCIDRs(ctx context.Context, client kubernetes.Interface, ranges []netip.Prefix) {
	configured := make([]net.IPNet, 2)
	for i, r := range ranges {
		configured[i] = net.IPNet{IP: r.Addr().AsSlice(), Mask: net.CIDRMask(r.Bits(), r.Addr().BitLen())}
	}
	defaultservicecidr.NewController(configured[0], configured[1], client).Start(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(withoutOwners))
	network := factory.Networking().V1()
	controller := servicecidrs.NewController(ctx, network.ServiceCIDRs(), network.IPAddresses(), client)
	factory.Start(ctx.Done())
	controller.Run(ctx, 1)
	factory.Shutdown()
}

// withoutOwners drops managed fields, because no controller reads them. They are about half of an object.
func withoutOwners(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}
