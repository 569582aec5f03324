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
)

// Objects is where the resolver reads. The JSON it gets is shared and not written to.
type Objects struct {
	// Get returns the JSON of the object of a kind of the core group ("services", "endpoints"), or nil.
	Get func(resource, namespace, name string) []byte
	// Slices yields the JSON of every EndpointSlice of a namespace.
	Slices func(namespace string) iter.Seq[[]byte]
}

// Resolver returns what Dialer.Resolve is: a function that finds the address ("10.1.2.3:8443") of a port of a Service. The port is one of
// those that the Service lists, by number. Of several ready endpoints it takes one at random, of the Service's own family
// of addresses if there are any. Endpoints are asked where no EndpointSlice of the Service exists, since no controller
// mirrors them. A Service of type ExternalName is its name, which DNS knows, with the same port.
//
// The errors are worded as those of kube-apiserver's resolver (k8s.io/apiserver/pkg/util/proxy).
func Resolver(o Objects) func(ctx context.Context, namespace, name string, port int32) (hostPort string, err error) {
	return func(ctx context.Context, namespace, name string, port int32) (string, error) {
		if namespace == "" || name == "" || port == 0 {
			return "", errors.New("cannot resolve an empty service name or namespace or port")
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		return o.resolve(namespace, name, port)
	}
}

func (o Objects) resolve(namespace, name string, port int32) (string, error) {
	raw := o.Get("services", namespace, name)
	if raw == nil {
		// upstream's lister says it so
		return "", apierrors.NewNotFound(corev1.Resource("service"), name)
	}
	var svc corev1.Service
	if err := json.Unmarshal(raw, &svc); err != nil {
		return "", fmt.Errorf("egress: read service %s/%s: %w", namespace, name, err)
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		return net.JoinHostPort(svc.Spec.ExternalName, strconv.Itoa(int(port))), nil
	}
	for _, p := range svc.Spec.Ports {
		if p.Port == port {
			return o.endpoint(&svc, namespace, p.Name)
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", port, name))
}

// endpoint is one of the ready addresses behind a port, which has the same name in the endpoints.
func (o Objects) endpoint(svc *corev1.Service, namespace, portName string) (string, error) {
	var preferred, others []string
	sliced := false
	for raw := range o.Slices(namespace) {
		var slice discoveryv1.EndpointSlice
		if err := json.Unmarshal(raw, &slice); err != nil {
			return "", fmt.Errorf("egress: read the endpoint slices of service %s/%s: %w", namespace, svc.Name, err)
		}
		if slice.Labels[discoveryv1.LabelServiceName] != svc.Name {
			continue
		}
		sliced = true
		if families := svc.Spec.IPFamilies; len(families) > 0 && string(families[0]) == string(slice.AddressType) {
			preferred = append(preferred, inSlice(&slice, portName)...)
		} else {
			others = append(others, inSlice(&slice, portName)...)
		}
	}
	if !sliced {
		var endpoints corev1.Endpoints
		if raw := o.Get("endpoints", namespace, svc.Name); raw != nil {
			if err := json.Unmarshal(raw, &endpoints); err != nil {
				return "", fmt.Errorf("egress: read the endpoints of service %s/%s: %w", namespace, svc.Name, err)
			}
		}
		preferred = inEndpoints(&endpoints, portName)
	}
	for _, addresses := range [][]string{preferred, others} {
		if n := len(addresses); n > 0 {
			return addresses[rand.IntN(n)], nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", svc.Name))
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
