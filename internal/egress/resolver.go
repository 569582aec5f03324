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

// Objects is where the resolver reads. The JSON it gets is shared and not written to.
type Objects struct {
	// Get returns the JSON of the object of a kind of the core group ("services", "endpoints"), or nil.
	Get func(resource, namespace, name string) []byte
	// Slices yields the JSON of every EndpointSlice of a Service (HasSlice).
	Slices func(namespace, service string) iter.Seq[[]byte]
	// ByClusterIP leaves it to somebody else (kube-proxy) to find an endpoint behind the address of a Service that has one.
	ByClusterIP bool
}

// Resolver returns what Dialer.Resolve is: a function that finds the address ("10.1.2.3:8443") of a port of a Service, one of
// Endpoints at random.
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

// Cause is why a Service leads nowhere.
type Cause int

// The causes, which other errors do not have.
const (
	NoService   Cause = iota + 1 // there is none
	NoPort                       // it does not have the port
	NoEndpoints                  // nobody has said where it is
	NoneReady                    // none of its endpoints has the port and is ready
)

// UnresolvedError says that a Service leads nowhere.
type UnresolvedError struct {
	Cause
	PortName string // of NoneReady
	error
}

// Unwrap returns the error in upstream's words.
func (e *UnresolvedError) Unwrap() error { return e.error }

// Endpoints finds the addresses of a port of a Service, of which there is at least one. The port is one of
// those that the Service lists, by number. Only ready endpoints count, of the Service's own family
// of addresses if there are any. Endpoints are asked where no EndpointSlice of the Service exists, since no controller
// mirrors them. A Service of type ExternalName is its name, which DNS knows, with the same port.
//
// The errors are worded as those of kube-apiserver's resolver (k8s.io/apiserver/pkg/util/proxy). Those that say that there is
// none are UnresolvedErrors.
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
			return o.behind(svc, namespace, p)
		}
	}
	return nil, &UnresolvedError{Cause: NoPort, error: apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", port, name))}
}

// IsExternal reports whether a Service exists and has the type ExternalName.
func (o Objects) IsExternal(namespace, name string) bool {
	svc, err := o.service(namespace, name)
	return err == nil && svc.Spec.Type == corev1.ServiceTypeExternalName
}

// service reads a Service. The error of a missing one is an UnresolvedError.
func (o Objects) service(namespace, name string) (*corev1.Service, error) {
	raw := o.Get("services", namespace, name)
	if raw == nil {
		return nil, &UnresolvedError{Cause: NoService, error: apierrors.NewNotFound(corev1.Resource("service"), name)} // as upstream's lister
	}
	svc := &corev1.Service{}
	if err := json.Unmarshal(raw, svc); err != nil {
		return nil, fmt.Errorf("egress: read service %s/%s: %w", namespace, name, err)
	}
	return svc, nil
}

// behind are the ready addresses behind a port, which has the same name in the endpoints.
func (o Objects) behind(svc *corev1.Service, namespace string, port corev1.ServicePort) ([]string, error) {
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
			preferred = append(preferred, inSlice(&slice, port.Name)...)
		} else {
			others = append(others, inSlice(&slice, port.Name)...)
		}
	}
	if raw := o.Get("endpoints", namespace, svc.Name); !known && raw != nil {
		var endpoints corev1.Endpoints
		if err := json.Unmarshal(raw, &endpoints); err != nil {
			return nil, fmt.Errorf("egress: read the endpoints of service %s/%s: %w", namespace, svc.Name, err)
		}
		known, preferred = true, inEndpoints(&endpoints, port.Name)
	}
	for _, addresses := range [][]string{preferred, others} {
		if len(addresses) > 0 {
			return addresses, nil
		}
	}
	cause := NoneReady
	if !known {
		cause = NoEndpoints
	}
	return nil, &UnresolvedError{cause, port.Name, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", svc.Name))}
}

// HasSlice reports that the JSON of an EndpointSlice of its namespace is of a Service. It reads no more than that takes, as there are
// many of others.
func HasSlice(service string, slice []byte) bool {
	meta, err := object.ScanMeta(slice)
	return err == nil && meta.Labels.Get(discoveryv1.LabelServiceName) == service
}

// inSlice lists the ready addresses; of an endpoint's the first counts. What says nothing of being ready, is.
func inSlice(slice *discoveryv1.EndpointSlice, portName string) (all []string) {
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

func inEndpoints(endpoints *corev1.Endpoints, portName string) (all []string) {
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
