package apiserver

import (
	"context"
	"iter"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/server/egressselector"
	coreapply "k8s.io/client-go/applyconfigurations/core/v1"
	discoveryapply "k8s.io/client-go/applyconfigurations/discovery/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryv1client "k8s.io/client-go/kubernetes/typed/discovery/v1"

	apidiscovery "github.com/trellis-k8s/trellis/internal/api/discovery"
	"github.com/trellis-k8s/trellis/internal/controllers/bootstrap"
	"github.com/trellis-k8s/trellis/internal/egress"
	"github.com/trellis-k8s/trellis/internal/kinds/services"
)

// services returns functions that read Services and EndpointSlices from the store. They are used to resolve Services.
// Built-in kinds are stored in the version in which they are served.
func (s *Server) services() egress.Objects {
	return egress.Objects{
		Get: func(resource, namespace, name string) []byte {
			rec := s.store.Head().Get(s.definition("", resource).Key(namespace, name))
			if rec == nil {
				return nil
			}
			return rec.Value
		},
		Slices: func(namespace, service string) iter.Seq[[]byte] {
			prefix := s.definition("discovery.k8s.io", "endpointslices").Key(namespace, "")
			return func(yield func([]byte) bool) {
				for rec := range s.store.Head().Walk(prefix, "") {
					if egress.HasSlice(service, rec.Value) && !yield(rec.Value) {
						return
					}
				}
			}
		},
	}
}

// dialer returns the dialer of all connections that the server opens.
func (s *Server) dialer() *egress.Dialer {
	services := s.services()
	return &egress.Dialer{
		Cluster:      s.egressSelector.Dialer(egressselector.Cluster),
		ControlPlane: s.egressSelector.Dialer(egressselector.ControlPlane),
		Resolve:      egress.Resolver(services),
		IsLocal: func(namespace, name string) bool {
			return slices.Contains(s.config.LocalServices, namespace+"/"+name) &&
				services.IsExternalName(namespace, name)
		},
		Generation: egress.Generations(s.store.Head, func(group, plural, namespace, name string) string {
			return s.definition(group, plural).Key(namespace, name)
		}),
		Proxy:   http.ProxyFromEnvironment,
		Metrics: egress.NewMetrics(),
		Self:    transport(s.callLoopback),
	}
}

// repairInterval is the interval of the Service IP repair controller, as in kube-apiserver.
const repairInterval = 3 * time.Minute

// repairAddresses creates missing IPAddresses of Services and deletes wrong IPAddresses, because clients can delete
// and change them.
func (s *Server) repairAddresses(ctx context.Context) error {
	wrong, missing := services.RepairAddresses(s.store.Head())
	if len(wrong)+len(missing) == 0 {
		return nil
	}
	s.config.Logger.Warn("repairing IPAddresses that do not match the Services", "wrong", len(wrong), "missing",
		len(missing))
	return bootstrap.RepairAddresses(ctx, s.client.NetworkingV1(), wrong, missing)
}

const (
	serviceName = "kubernetes" // name of the API server's Service in the namespace default
	servicePort = 443
	httpsPort   = "https"
	// label that contains the name of a Service proxy other than kube-proxy
	proxyName = "service.kubernetes.io/service-proxy-name"
)

// publishService applies the Service kubernetes, as kube-apiserver does. Its endpoint is this server's address if other
// machines can reach it. Otherwise a label makes kube-proxy ignore the Service. kube-proxy would reject connections to
// a Service without endpoints, but another program such as trellis-cluster may serve them.
func (s *Server) publishService(ctx context.Context) error {
	core, discovery := s.client.CoreV1(), s.client.DiscoveryV1()
	port := int32(s.listener.Addr().(*net.TCPAddr).Port)
	client := core.Services(metav1.NamespaceDefault)
	spec := coreapply.ServiceSpec().
		WithType(corev1.ServiceTypeClusterIP).
		WithPorts(coreapply.ServicePort().WithName(httpsPort).WithProtocol(corev1.ProtocolTCP).
			WithPort(servicePort).WithTargetPort(intstr.FromInt32(port)))
	if _, err := client.Get(ctx, serviceName, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		// an existing Service keeps its address
		spec.WithClusterIP(services.ServerIP(s.config.ServiceClusterIPRanges[0]))
	}
	labels := map[string]string{"component": "apiserver", "provider": "kubernetes"}
	address := s.advertisedIP()
	if address == nil {
		labels[proxyName] = "trellis"
	}
	service := coreapply.Service(serviceName, metav1.NamespaceDefault).WithLabels(labels).WithSpec(spec)
	if _, err := client.Apply(ctx, service, applyOptions()); err != nil {
		return err
	}
	return publishAddress(ctx, core.Endpoints(metav1.NamespaceDefault),
		discovery.EndpointSlices(metav1.NamespaceDefault), address, port)
}

func applyOptions() metav1.ApplyOptions {
	return metav1.ApplyOptions{FieldManager: "trellis", Force: true}
}

func publishAddress(ctx context.Context, endpoints corev1client.EndpointsInterface,
	slices discoveryv1client.EndpointSliceInterface, address net.IP, port int32) error {
	if address == nil {
		for _, remove := range []func(context.Context, string, metav1.DeleteOptions) error{endpoints.Delete,
			slices.Delete} {
			if err := remove(ctx, serviceName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		return nil
	}
	family := discoveryv1.AddressTypeIPv4
	if address.To4() == nil {
		family = discoveryv1.AddressTypeIPv6
	}
	slice := discoveryapply.EndpointSlice(serviceName, metav1.NamespaceDefault).
		WithLabels(map[string]string{discoveryv1.LabelServiceName: serviceName}).
		WithAddressType(family).
		WithEndpoints(discoveryapply.Endpoint().WithAddresses(address.String()).
			WithConditions(discoveryapply.EndpointConditions().WithReady(true))).
		WithPorts(discoveryapply.EndpointPort().WithName(httpsPort).WithPort(port).WithProtocol(corev1.ProtocolTCP))
	// --runtime-config may disable discovery.k8s.io
	if _, err := slices.Apply(ctx, slice, applyOptions()); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	old := coreapply.Endpoints(serviceName, metav1.NamespaceDefault).
		WithLabels(map[string]string{discoveryv1.LabelSkipMirror: "true"}).
		WithSubsets(coreapply.EndpointSubset().
			WithAddresses(coreapply.EndpointAddress().WithIP(address.String())).
			WithPorts(coreapply.EndpointPort().WithName(httpsPort).WithPort(port).WithProtocol(corev1.ProtocolTCP)))
	_, err := endpoints.Apply(ctx, old, applyOptions())
	return err
}

// discoveryAddresses returns the server addresses that discovery reports, as kube-apiserver does. All clients get the
// advertised address, or the listening address if no other machine can reach the server. Clients with an IP address in
// the Service range also get the address of the Service kubernetes.
func (s *Server) discoveryAddresses() apidiscovery.Addresses {
	address, ips := strings.TrimPrefix(s.URL(), "https://"), s.config.ServiceClusterIPRanges[0]
	if ip := s.advertisedIP(); ip != nil {
		address = net.JoinHostPort(ip.String(), strconv.Itoa(s.listener.Addr().(*net.TCPAddr).Port))
	}
	return apidiscovery.Addresses{
		Default: address,
		Range:   ips, InRange: net.JoinHostPort(services.ServerIP(ips), strconv.Itoa(servicePort)),
	}
}

// advertisedIP returns the address at which other machines reach the server, or nil if they cannot.
func (s *Server) advertisedIP() net.IP {
	ip := s.listener.Addr().(*net.TCPAddr).IP
	if given := s.config.AdvertiseAddress; given != nil && !given.IsUnspecified() {
		ip = given
	}
	if !ip.IsUnspecified() {
		if ip.IsLoopback() || ip.IsLinkLocalUnicast() {
			return nil
		}
		return ip
	}
	addresses, _ := net.InterfaceAddrs() // if this fails, the server has no address to advertise
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP
		}
	}
	return nil
}
