package capacity

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
)

// load is the resources and host ports that a Pod uses on its node.
type load struct {
	requests []request // sorted by name
	ports    []hostPort
}

// request is an amount of a resource, in the unit of amountOf. Each Pod requests 1 of the resource "pods".
type request struct {
	resource corev1.ResourceName
	amount   int64
}

// hostPort is a port at one address of a node, or at all its addresses if ip is allAddresses.
type hostPort struct {
	ip, protocol string
	port         int32
}

const allAddresses = "0.0.0.0"

func (p hostPort) String() string {
	if p.ip == allAddresses {
		return fmt.Sprintf("%d/%s", p.port, p.protocol)
	}
	return fmt.Sprintf("%d/%s at %s", p.port, p.protocol, p.ip)
}

// conflictsWith reports whether a node cannot provide p and other at the same time.
func (p hostPort) conflictsWith(other hostPort) bool {
	return p.port == other.port && p.protocol == other.protocol &&
		(p.ip == other.ip || p.ip == allAddresses || other.ip == allAddresses)
}

// loadOf returns the load of a Pod from its stored JSON. The load of a terminated Pod is empty.
func loadOf(json []byte) (l load) {
	pod := podOf(json)
	if podutil.IsPodPhaseTerminal(pod.Status.Phase) {
		return l
	}
	// The scheduler uses the same options to compute the requests of a Pod on a node. UseStatusResources triples the
	// time, so it is set only if the status may report a resize.
	all := resource.PodRequests(pod, resource.PodResourcesOptions{
		UseStatusResources: len(pod.Status.ContainerStatuses)+len(pod.Status.InitContainerStatuses) > 0 ||
			pod.Status.Resources != nil || resource.IsPodResizeInfeasible(pod),
		InPlacePodLevelResourcesVerticalScalingEnabled: true,
	})
	l.requests = append(make([]request, 0, len(all)+1), request{corev1.ResourcePods, 1})
	for name, quantity := range all {
		if amount := amountOf(name, quantity); amount > 0 {
			l.requests = append(l.requests, request{unique.Make(name).Value(), amount})
		}
	}
	slices.SortFunc(l.requests, func(a, b request) int { return cmp.Compare(a.resource, b.resource) })
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			l.addPorts(c.Ports)
		}
	}
	for _, c := range pod.Spec.Containers {
		l.addPorts(c.Ports)
	}
	return l
}

// addPorts adds the host ports of a container. The container must run as long as its Pod.
func (l *load) addPorts(ports []corev1.ContainerPort) {
	for _, p := range ports {
		if p.HostPort > 0 {
			protocol := unique.Make(string(cmp.Or(p.Protocol, corev1.ProtocolTCP))).Value()
			l.ports = append(l.ports, hostPort{strings.Clone(cmp.Or(p.HostIP, allAddresses)), protocol, p.HostPort})
		}
	}
}

// amount returns the requested amount of a resource.
func (l *load) amount(name corev1.ResourceName) int64 {
	for i := range l.requests {
		if l.requests[i].resource == name {
			return l.requests[i].amount
		}
	}
	return 0
}

// exceeds reports whether the load l has a larger amount of any resource than the load other, or a port that is
// missing in other.
func (l *load) exceeds(other *load) bool {
	for _, r := range l.requests {
		if r.amount > other.amount(r.resource) {
			return true
		}
	}
	return slices.ContainsFunc(l.ports, func(p hostPort) bool { return !slices.Contains(other.ports, p) })
}
