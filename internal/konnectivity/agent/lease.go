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

// leaseInformer follows the Leases of servers. changed is called where there is one more, or one less.
func leaseInformer(client kubernetes.Interface, c *Config, changed func()) cache.SharedIndexInformer {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(c.LeaseNamespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = c.LeaseSelector.String() }))
	informer := factory.Coordination().V1().Leases().Informer()
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{ // an error is that of an informer which has ended
		AddFunc:    func(any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	return informer
}

// countLeases counts the servers whose Leases hold, and returns the addresses that these have.
func countLeases(leases []any, now time.Time) (count int, addresses []string) {
	for _, o := range leases {
		l, ok := o.(*coordinationv1.Lease)
		if !ok || !wire.LeaseValid(l.Spec, now) {
			continue
		}
		count++
		for a := range strings.SplitSeq(l.Annotations[wire.AddressAnnotation], ",") {
			if host, port, err := net.SplitHostPort(strings.TrimSpace(a)); err == nil && host != "" {
				addresses = append(addresses, net.JoinHostPort(host, port))
			}
		}
	}
	return count, addresses
}
