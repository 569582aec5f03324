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

// load is what a Pod takes of its node.
type load struct {
	requests []request // by name
	ports    []hostPort
}

// request is how much of a resource: of cpu thousandths, and of the node's Pods one.
type request struct {
	of     corev1.ResourceName
	amount int64
}

// hostPort is a port of the node itself, at one of its addresses or at all of them.
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

// clashes is whether not both ports can be had.
func (p hostPort) clashes(other hostPort) bool {
	return p.port == other.port && p.protocol == other.protocol && (p.ip == other.ip || p.ip == allAddresses || other.ip == allAddresses)
}

// loadOf is that of a stored Pod. One that has ended takes nothing.
func loadOf(json []byte) (l load) {
	pod := podOf(json)
	if podutil.IsPodPhaseTerminal(pod.Status.Phase) {
		return l
	}
	// As the scheduler counts what is on a node. What says nothing of a resize need not be asked, at a third of the time.
	all := resource.PodRequests(pod, resource.PodResourcesOptions{
		UseStatusResources: len(pod.Status.ContainerStatuses)+len(pod.Status.InitContainerStatuses) > 0 || pod.Status.Resources != nil || resource.IsPodResizeInfeasible(pod),
		InPlacePodLevelResourcesVerticalScalingEnabled: true,
	})
	l.requests = append(make([]request, 0, len(all)+1), request{corev1.ResourcePods, 1})
	for name, quantity := range all {
		if amount := amountOf(name, quantity); amount > 0 {
			l.requests = append(l.requests, request{unique.Make(name).Value(), amount})
		}
	}
	slices.SortFunc(l.requests, func(a, b request) int { return cmp.Compare(a.of, b.of) })
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			l.take(c.Ports)
		}
	}
	for _, c := range pod.Spec.Containers {
		l.take(c.Ports)
	}
	return l
}

// take adds the ports of the node that a container has for as long as its Pod runs.
func (l *load) take(ports []corev1.ContainerPort) {
	for _, p := range ports {
		if p.HostPort > 0 {
			l.ports = append(l.ports, hostPort{strings.Clone(cmp.Or(p.HostIP, allAddresses)), unique.Make(string(cmp.Or(p.Protocol, corev1.ProtocolTCP))).Value(), p.HostPort})
		}
	}
}

// of is how much of a resource it is.
func (l *load) of(name corev1.ResourceName) int64 {
	for i := range l.requests {
		if l.requests[i].of == name {
			return l.requests[i].amount
		}
	}
	return 0
}

// exceeds is whether it is more than another in anything.
func (l *load) exceeds(other *load) bool {
	for _, r := range l.requests {
		if r.amount > other.of(r.of) {
			return true
		}
	}
	return slices.ContainsFunc(l.ports, func(p hostPort) bool { return !slices.Contains(other.ports, p) })
}
