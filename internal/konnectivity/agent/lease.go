package agent

import (
	"net"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// leaseInformer returns an informer of the servers' Leases. It calls changed when a Lease is added or deleted.
func leaseInformer(client kubernetes.Interface, c *Config, changed func()) cache.SharedIndexInformer {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(c.LeaseNamespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = c.LeaseSelector.String() }))
	informer := factory.Coordination().V1().Leases().Informer()
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{ // fails only after the informer has stopped
		AddFunc:    func(any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	return informer
}

// countLeases returns the number of valid Leases and the addresses in their annotations.
func countLeases(leases []any, now time.Time) (count int, addresses []string) {
	for _, item := range leases {
		lease, ok := item.(*coordinationv1.Lease)
		if !ok || !wire.LeaseValid(lease.Spec, now) {
			continue
		}
		count++
		for address := range strings.SplitSeq(lease.Annotations[wire.AddressAnnotation], ",") {
			if host, port, err := net.SplitHostPort(strings.TrimSpace(address)); err == nil && host != "" {
				addresses = append(addresses, net.JoinHostPort(host, port))
			}
		}
	}
	return count, addresses
}
