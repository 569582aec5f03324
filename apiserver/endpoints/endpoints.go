// Package endpoints maintains the Service kubernetes and its endpoints, the addresses of the running servers.
package endpoints

import (
	"context"
	"net"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"github.com/trellis-k8s/trellis/internal/storage"
)

const (
	// ServicePort is the port of the Service.
	ServicePort = 443

	serviceName = "kubernetes" // in the namespace default
	portName    = "https"
	// proxyLabel contains the name of a Service proxy other than kube-proxy.
	proxyLabel = "service.kubernetes.io/service-proxy-name"
)

// Config describes this server.
type Config struct {
	Client kubernetes.Interface
	// Shared is the store if other servers use it, too. Otherwise it is nil.
	Shared    storage.Store
	IP        net.IP // nil if other machines cannot reach the server
	Port      int32
	ServiceIP string // address of a new Service
	NoSlices  bool   // EndpointSlices are not served
}

// Publisher maintains the Service kubernetes and its endpoints, as kube-apiserver does. The endpoints are the running
// servers that other machines can reach. If there are none, a label makes kube-proxy ignore the Service. kube-proxy
// would reject connections to a Service without endpoints, but another program such as trellis-cluster may serve them.
type Publisher struct {
	Config
	addresses  *addresses
	reconciler reconcilers.EndpointReconciler
	ports      []corev1.EndpointPort
}

// New returns a Publisher.
func New(c Config) *Publisher {
	all := &addresses{store: c.Shared}
	adapter := reconcilers.NewEndpointsAdapter(c.Client.CoreV1(), c.Client.DiscoveryV1())
	return &Publisher{
		Config: c, addresses: all, reconciler: reconcilers.NewLeaseEndpointReconciler(adapter, all),
		ports: []corev1.EndpointPort{{Name: portName, Port: c.Port, Protocol: corev1.ProtocolTCP}},
	}
}

// Start writes the Service and its endpoints with the ports of this server.
func (p *Publisher) Start(ctx context.Context) error {
	another := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	return retry.OnError(retry.DefaultBackoff, another, func() error { return p.publish(ctx, true) })
}

// Renew renews the address of this server, and corrects the Service and its endpoints except for their ports. It must
// be called at least every 10 seconds. A server that does not call it for 15 seconds loses its endpoint.
func (p *Publisher) Renew(ctx context.Context) error { return p.publish(ctx, false) }

// Withdraw removes this server from the endpoints. If there are no other servers, it keeps the endpoint, because no
// client can read it until the server has started again.
func (p *Publisher) Withdraw() error {
	p.reconciler.StopReconciling()
	if p.Shared == nil || p.IP == nil {
		return nil
	}
	return p.ignoreDisabled(p.reconciler.RemoveEndpoints(serviceName, p.IP, p.ports))
}

func (p *Publisher) publish(ctx context.Context, ports bool) error {
	running, err := p.addresses.ListLeases()
	if err != nil {
		return err
	}
	hidden := p.IP == nil && len(running) == 0
	was, err := p.Client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, serviceName, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return err
	}
	if ports || missing || hidden == (was.Labels[proxyLabel] == "") {
		if err := p.applyService(ctx, hidden, missing); err != nil {
			return err
		}
	}
	switch {
	case p.IP != nil:
		return p.ignoreDisabled(p.reconciler.ReconcileEndpoints(serviceName, p.IP, p.ports, ports))
	case hidden:
		return p.deleteEndpoints(ctx)
	}
	return nil
}

func (p *Publisher) applyService(ctx context.Context, hidden, isNew bool) error {
	spec := coreapply.ServiceSpec().
		WithType(corev1.ServiceTypeClusterIP).
		WithPorts(coreapply.ServicePort().WithName(portName).WithProtocol(corev1.ProtocolTCP).
			WithPort(ServicePort).WithTargetPort(intstr.FromInt32(p.Port)))
	if isNew { // an existing Service keeps its address
		spec.WithClusterIP(p.ServiceIP)
	}
	labels := map[string]string{"component": "apiserver", "provider": "kubernetes"}
	if hidden {
		labels[proxyLabel] = "trellis"
	}
	service := coreapply.Service(serviceName, metav1.NamespaceDefault).WithLabels(labels).WithSpec(spec)
	_, err := p.Client.CoreV1().Services(metav1.NamespaceDefault).Apply(ctx, service,
		metav1.ApplyOptions{FieldManager: "trellis", Force: true})
	return err
}

func (p *Publisher) deleteEndpoints(ctx context.Context) error {
	for _, remove := range []func(context.Context, string, metav1.DeleteOptions) error{
		p.Client.CoreV1().Endpoints(metav1.NamespaceDefault).Delete,
		p.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Delete,
	} {
		if err := remove(ctx, serviceName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// ignoreDisabled returns nil for the error of the reconciler if EndpointSlices are not served. It writes them last.
func (p *Publisher) ignoreDisabled(err error) error {
	if p.NoSlices && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
