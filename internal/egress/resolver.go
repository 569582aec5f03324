package egress

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Objects is the source of the objects that the resolver reads. The returned JSON is shared and must not be modified.
type Objects struct {
	// Get returns the JSON of an object of the core group ("services", "endpoints"), or nil.
	Get func(resource, namespace, name string) []byte
	// Slices yields the JSON of every EndpointSlice for which HasSlice returns true.
	Slices func(namespace, service string) iter.Seq[[]byte]
	// If ByClusterIP is true and the Service has a ClusterIP, the resolver returns the ClusterIP. kube-proxy then
	// selects the endpoint.
	ByClusterIP bool
}

// Resolver returns a function for Dialer.Resolve. For a port of a Service, the function returns one of the
// addresses that Endpoints returns ("10.1.2.3:8443"), chosen at random.
func Resolver(o Objects) func(ctx context.Context, namespace, name string, port int32) (hostPort string, err error) {
	return func(ctx context.Context, namespace, name string, port int32) (string, error) {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		all, err := o.Endpoints(namespace, name, port)
		if err != nil {
			return "", err
		}
		return all[rand.IntN(len(all))], nil
	}
}

// Cause is the reason why a Service cannot be resolved.
type Cause int

// The causes of an UnresolvedError. The value 0 is not used.
const (
	NoService       Cause = iota + 1 // the Service does not exist
	NoPort                           // the Service does not have the port
	NoEndpoints                      // the Service has neither EndpointSlices nor Endpoints
	NoReadyEndpoint                  // no endpoint has the port and is ready
)

// UnresolvedError is the error for a Service that cannot be resolved.
type UnresolvedError struct {
	Cause
	PortName string // set for NoneReady
	error
}

// Unwrap returns the error with upstream's message.
func (e *UnresolvedError) Unwrap() error { return e.error }

// Endpoints returns the addresses of a port of a Service. There is at least one address if there is no error. port
// is the number of a port in the Service's spec. Only ready endpoints count. Addresses of the Service's first IP
// family are preferred over others. Endpoints objects are used only if the Service has no EndpointSlice, because
// no controller mirrors them into EndpointSlices. A Service of type ExternalName resolves to its DNS name and the
// same port.
//
// The error messages equal those of kube-apiserver's resolver (k8s.io/apiserver/pkg/util/proxy). The error is an
// UnresolvedError if the Service, its port or its endpoints are missing.
func (o Objects) Endpoints(namespace, name string, port int32) ([]string, error) {
	if namespace == "" || name == "" || port == 0 {
		return nil, errors.New("cannot resolve an empty service name or namespace or port")
	}
	svc, err := o.service(namespace, name)
	if err != nil {
		return nil, err
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return []string{net.JoinHostPort(svc.Spec.ExternalName, strconv.Itoa(int(port)))}, nil
	}
	for _, p := range svc.Spec.Ports {
		if p.Port == port {
			return o.readyAddresses(svc, namespace, p)
		}
	}
	return nil, &UnresolvedError{Cause: NoPort,
		error: apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", port, name))}
}

// IsExternalName reports whether a Service exists and has the type ExternalName.
func (o Objects) IsExternalName(namespace, name string) bool {
	svc, err := o.service(namespace, name)
	return err == nil && svc.Spec.Type == corev1.ServiceTypeExternalName
}

// service returns a Service. The error is an UnresolvedError if it does not exist.
func (o Objects) service(namespace, name string) (*corev1.Service, error) {
	raw := o.Get("services", namespace, name)
	if raw == nil {
		// The error equals that of upstream's lister.
		return nil, &UnresolvedError{Cause: NoService, error: apierrors.NewNotFound(corev1.Resource("service"), name)}
	}
	svc := &corev1.Service{}
	if err := json.Unmarshal(raw, svc); err != nil {
		return nil, fmt.Errorf("egress: read service %s/%s: %w", namespace, name, err)
	}
	return svc, nil
}

// readyAddresses returns the ready addresses of a port. The port has the same name in the Service and in its endpoints.
func (o Objects) readyAddresses(svc *corev1.Service, namespace string, port corev1.ServicePort) ([]string, error) {
	if ip := svc.Spec.ClusterIP; o.ByClusterIP && ip != "" && ip != corev1.ClusterIPNone {
		return []string{net.JoinHostPort(ip, strconv.Itoa(int(port.Port)))}, nil
	}
	var preferred, others []string
	known := false
	for raw := range o.Slices(namespace, svc.Name) {
		var slice discoveryv1.EndpointSlice
		if err := json.Unmarshal(raw, &slice); err != nil {
			return nil, fmt.Errorf("egress: read the endpoint slices of service %s/%s: %w", namespace, svc.Name, err)
		}
		known = true
		if families := svc.Spec.IPFamilies; len(families) > 0 && string(families[0]) == string(slice.AddressType) {
			preferred = append(preferred, sliceAddresses(&slice, port.Name)...)
		} else {
			others = append(others, sliceAddresses(&slice, port.Name)...)
		}
	}
	if raw := o.Get("endpoints", namespace, svc.Name); !known && raw != nil {
		var endpoints corev1.Endpoints
		if err := json.Unmarshal(raw, &endpoints); err != nil {
			return nil, fmt.Errorf("egress: read the endpoints of service %s/%s: %w", namespace, svc.Name, err)
		}
		known, preferred = true, endpointsAddresses(&endpoints, port.Name)
	}
	for _, addresses := range [][]string{preferred, others} {
		if len(addresses) > 0 {
			return addresses, nil
		}
	}
	cause := NoReadyEndpoint
	if !known {
		cause = NoEndpoints
	}
	return nil, &UnresolvedError{cause, port.Name,
		apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", svc.Name))}
}

// HasSlice reports whether the JSON of an EndpointSlice in the Service's namespace belongs to the Service. It only
// scans the metadata, because most slices belong to other Services.
func HasSlice(service string, slice []byte) bool {
	meta, err := object.ScanMeta(slice)
	return err == nil && meta.Labels.Get(discoveryv1.LabelServiceName) == service
}

// sliceAddresses returns the first address of each ready endpoint. An endpoint without a ready condition is ready.
func sliceAddresses(slice *discoveryv1.EndpointSlice, portName string) (all []string) {
	for _, p := range slice.Ports {
		if p.Port == nil || p.Name != nil && *p.Name != portName || p.Name == nil && portName != "" {
			continue
		}
		for _, e := range slice.Endpoints {
			if ready := e.Conditions.Ready; (ready == nil || *ready) && len(e.Addresses) > 0 {
				all = append(all, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
			}
		}
	}
	return all
}

func endpointsAddresses(endpoints *corev1.Endpoints, portName string) (all []string) {
	for _, s := range endpoints.Subsets {
		for _, p := range s.Ports {
			if p.Name != portName {
				continue
			}
			for _, a := range s.Addresses {
				all = append(all, net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	return all
}
