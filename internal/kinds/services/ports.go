package services

import (
	"errors"
	"fmt"
	"math/rand/v2"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
)

// portsTaken returns the node ports that are not available. They belong to other Services or were already assigned to
// this Service.
func (a *assignment) portsTaken() nodePortSet {
	if a.takenPorts == nil {
		a.takenPorts = nodePortsOfOthers(a.head(), serviceKey(a.svc.Namespace, a.svc.Name))
		for _, p := range a.svc.Spec.Ports {
			if a.old != nil && hasNodePort(a.old, p.NodePort) {
				a.takenPorts[p.NodePort] = true
			}
		}
	}
	return a.takenPorts
}

// nodePorts assigns a node port to each port that needs one. On a create, ports with the same number and different
// protocols share a node port.
func (a *assignment) nodePorts() error {
	ports, shared := a.svc.Spec.Ports, map[int32]int32{}
	wanted := !isLoadBalancer(a.svc) || a.svc.Spec.AllocateLoadBalancerNodePorts == nil ||
		*a.svc.Spec.AllocateLoadBalancerNodePorts
	for i := range ports {
		p := &ports[i]
		if p.NodePort == 0 && !wanted || a.old != nil && p.NodePort != 0 && hasNodePort(a.old, p.NodePort) {
			continue
		}
		if a.old == nil {
			if p.NodePort == 0 {
				p.NodePort = shared[p.Port]
			}
			if p.NodePort == 0 {
				p.NodePort = requestedNodePort(ports, p.Port)
			}
			if p.NodePort != 0 && p.NodePort == shared[p.Port] {
				continue
			}
		}
		if err := a.takePort(&p.NodePort); errors.Is(err, errFull) {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
		} else if err != nil {
			return a.invalid(field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), p.NodePort,
				err.Error()))
		}
		shared[p.Port] = p.NodePort
	}
	return nil
}

// requestedNodePort returns the node port that the client requests for a port with this number, or 0 if there is no
// such request.
func requestedNodePort(ports []core.ServicePort, number int32) int32 {
	for _, p := range ports {
		if p.Port == number && p.NodePort != 0 {
			return p.NodePort
		}
	}
	return 0
}

// takePort marks the node port *port as taken. If *port is 0, it first sets *port to a free node port.
func (a *assignment) takePort(port *int32) error {
	taken := a.portsTaken()
	switch {
	case *port == 0:
		isTaken := func(n int) bool { return taken[int32(a.ports.Base+n)] }
		n, ok := pickFree(a.ports.Size, clamp(a.ports.Size/32, 16, 128), isTaken)
		if !ok {
			return errFull
		}
		*port = int32(a.ports.Base + n)
	case !a.ports.Contains(int(*port)):
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", a.ports)
	case taken[*port]:
		return errTakenPort
	}
	taken[*port] = true
	return nil
}

func (a *assignment) healthCheckPort() error {
	port := &a.svc.Spec.HealthCheckNodePort
	err := a.takePort(port)
	switch {
	case err == nil:
		return nil
	case *port == 0:
		err = fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %w", *port, err)
	default:
		err = fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", *port, err)
	}
	return apierrors.NewInternalError(err)
}

// pickFree returns a random free number below size, or false if all are taken. Numbers below reserved are meant for
// explicit requests (KEP-3070, KEP-3668), so pickFree returns them only if all other numbers are taken.
func pickFree(size, reserved int, taken func(int) bool) (int, bool) {
	if size <= 16 {
		reserved = 0
	}
	for _, band := range [2][2]int{{reserved, size}, {0, reserved}} {
		n := band[1] - band[0]
		if n <= 0 {
			continue
		}
		start := rand.IntN(n)
		for i := range n {
			if k := band[0] + (start+i)%n; !taken(k) {
				return k, true
			}
		}
	}
	return 0, false
}

func clamp(n, low, high int) int { return min(max(n, low), high) }
