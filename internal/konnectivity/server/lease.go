package server

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"

	"github.com/trellis-k8s/trellis/internal/konnectivity/wire"
)

// The times are the reference's, whose agents and servers read the same Leases.
const (
	leaseDuration      = 30 * time.Second
	leaseRenewInterval = 15 * time.Second
	leaseCullInterval  = 15 * time.Second
)

// LeasePrefix and the server's ID are the name of its Lease.
const LeasePrefix = "konnectivity-proxy-server-"

// Lease says how a server makes itself known to agents that count servers by their Leases.
type Lease struct {
	Client    kubernetes.Interface
	Namespace string
	Labels    map[string]string
	Addresses []string // host, or host:port where that is not the port for agents; for wire.AddressAnnotation; may be none
}

// withPort returns it with the port of addresses that have none.
func (l Lease) withPort(port int) Lease {
	l.Addresses = slices.Clone(l.Addresses)
	for i, address := range l.Addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			l.Addresses[i] = net.JoinHostPort(strings.Trim(address, "[]"), strconv.Itoa(port))
		}
	}
	return l
}

// leaseManager keeps the Lease of a server, and removes those of servers that have gone without a word.
type leaseManager struct {
	Lease
	metrics *metrics
	logger  *slog.Logger
	clock   clock.Clock
}

// run publishes the Lease of the server, renews it until ctx is done, and then deletes it.
func (l *leaseManager) run(ctx context.Context, id string) {
	own := lease.NewController(l.clock, l.Client, id, int32(leaseDuration.Seconds()), nil, leaseRenewInterval, LeasePrefix+id, l.Namespace, l.setMetadata)
	go wait.UntilWithContext(ctx, l.cull, leaseCullInterval)
	own.Run(ctx)
	own.Stop()
}

// setMetadata writes on the Lease what agents look for.
func (l *leaseManager) setMetadata(own *coordinationv1.Lease) error {
	own.Labels, own.Annotations = l.Labels, nil
	if len(l.Addresses) > 0 {
		own.Annotations = map[string]string{wire.AddressAnnotation: strings.Join(l.Addresses, ",")}
	}
	return nil
}

// cull removes Leases that have expired, unless they are renewed meanwhile.
func (l *leaseManager) cull(ctx context.Context) {
	client := l.Client.CoordinationV1().Leases(l.Namespace)
	all, err := client.List(ctx, metav1.ListOptions{LabelSelector: labels.FormatLabels(l.Labels)})
	if err != nil {
		l.logger.Warn("the Leases of servers cannot be listed", "namespace", l.Namespace, "error", err)
		return
	}
	for _, one := range all.Items {
		if wire.LeaseValid(one.Spec, l.clock.Now()) {
			continue
		}
		err := client.Delete(ctx, one.Name, *metav1.NewRVDeletionPrecondition(one.ResourceVersion))
		switch {
		case err == nil:
			l.metrics.culled.Inc()
		case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
			l.logger.Warn("an expired Lease cannot be removed", "name", one.Name, "error", err)
		}
	}
}
