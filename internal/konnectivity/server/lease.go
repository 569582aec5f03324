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

// These durations equal those of the reference implementation, whose agents and servers use the same Leases.
const (
	leaseDuration      = 30 * time.Second
	leaseRenewInterval = 15 * time.Second
	leaseCullInterval  = 15 * time.Second
)

// LeasePrefix is the prefix of the name of a server's Lease. The server's ID follows it.
const LeasePrefix = "konnectivity-proxy-server-"

// Lease configures the Lease with which a server announces itself to agents.
type Lease struct {
	Client    kubernetes.Interface
	Namespace string
	Labels    map[string]string
	// Addresses lists the addresses for wire.AddressAnnotation, as host or host:port. The default port is the
	// agent port. The list may be empty.
	Addresses []string
}

// withPort returns a copy in which each address has a port. An address without a port gets the given one.
func (l Lease) withPort(port int) Lease {
	l.Addresses = slices.Clone(l.Addresses)
	for i, address := range l.Addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			l.Addresses[i] = net.JoinHostPort(strings.Trim(address, "[]"), strconv.Itoa(port))
		}
	}
	return l
}

// leaseManager maintains the Lease of a server. It also deletes expired Leases of other servers.
type leaseManager struct {
	Lease
	metrics *metrics
	logger  *slog.Logger
	clock   clock.Clock
}

// run creates the Lease of the server, renews it until ctx is done, and then deletes it.
func (l *leaseManager) run(ctx context.Context, id string) {
	controller := lease.NewController(l.clock, l.Client, id, int32(leaseDuration.Seconds()), nil,
		leaseRenewInterval, LeasePrefix+id, l.Namespace, l.setMetadata)
	go wait.UntilWithContext(ctx, l.cull, leaseCullInterval)
	controller.Run(ctx)
	controller.Stop()
}

// setMetadata sets the labels and annotations that agents read.
func (l *leaseManager) setMetadata(lease *coordinationv1.Lease) error {
	lease.Labels, lease.Annotations = l.Labels, nil
	if len(l.Addresses) > 0 {
		lease.Annotations = map[string]string{wire.AddressAnnotation: strings.Join(l.Addresses, ",")}
	}
	return nil
}

// cull deletes expired Leases. A Lease that is renewed at the same time is not deleted.
func (l *leaseManager) cull(ctx context.Context) {
	client := l.Client.CoordinationV1().Leases(l.Namespace)
	list, err := client.List(ctx, metav1.ListOptions{LabelSelector: labels.FormatLabels(l.Labels)})
	if err != nil {
		l.logger.Warn("cannot list the Leases of servers", "namespace", l.Namespace, "error", err)
		return
	}
	for _, item := range list.Items {
		if wire.LeaseValid(item.Spec, l.clock.Now()) {
			continue
		}
		err := client.Delete(ctx, item.Name, *metav1.NewRVDeletionPrecondition(item.ResourceVersion))
		switch {
		case err == nil:
			l.metrics.culled.Inc()
		case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
			l.logger.Warn("cannot delete an expired Lease", "name", item.Name, "error", err)
		}
	}
}
