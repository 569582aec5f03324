package services

import (
	"context"
	"slices"

	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/trellis-k8s/trellis/internal/resource"
)

// In upstream, the storage of Services allocates addresses and ports and sets the fields that depend on them. Trellis
// uses only upstream's strategy of Services, so the functions in this file do the work of that storage.

// Prepare allocates the addresses and ports of a Service, before its strategy validates it.
func (p Pool) Prepare(_ context.Context, obj, old resource.Internal) error {
	svc := obj.(*core.Service)
	before, _ := old.(*core.Service)
	if before != nil {
		inherit(svc, before)
	}
	alignClusterIPs(svc, before)
	if p := svc.Spec.InternalTrafficPolicy; !needsClusterIP(svc) && p != nil &&
		(*p == core.ServiceInternalTrafficPolicyCluster || *p == core.ServiceInternalTrafficPolicyLocal) {
		svc.Spec.InternalTrafficPolicy = nil // upstream stores this field, but drops it on each read
	}
	return p.allocate(svc, before)
}

func isLoadBalancer(s *core.Service) bool { return s.Spec.Type == core.ServiceTypeLoadBalancer }
func needsClusterIP(s *core.Service) bool { return s.Spec.Type != core.ServiceTypeExternalName }

func needsNodePort(s *core.Service) bool {
	return s.Spec.Type == core.ServiceTypeNodePort || isLoadBalancer(s)
}

func needsHealthCheck(s *core.Service) bool {
	return isLoadBalancer(s) && s.Spec.ExternalTrafficPolicy == core.ServiceExternalTrafficPolicyLocal
}

func isHeadless(s *core.Service) bool {
	return len(s.Spec.ClusterIPs) == 1 && s.Spec.ClusterIPs[0] == core.ClusterIPNone
}

func sameClusterIPs(a, b *core.Service) bool {
	return slices.Equal(a.Spec.ClusterIPs, b.Spec.ClusterIPs)
}

// inherit copies addresses and ports from old to svc if the client has omitted them.
func inherit(svc, old *core.Service) {
	spec, before := &svc.Spec, &old.Spec
	if needsClusterIP(svc) && needsClusterIP(old) {
		setDefault(&spec.ClusterIP, before.ClusterIP)
		if len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = before.ClusterIPs
		}
	}
	if needsNodePort(svc) && needsNodePort(old) {
		inheritNodePorts(spec.Ports, before.Ports)
	}
	if needsHealthCheck(svc) && needsHealthCheck(old) {
		setDefault(&spec.HealthCheckNodePort, before.HealthCheckNodePort)
	}
}

// inheritNodePorts copies node ports from before to the ports with the same names. It does not copy a node port that
// another port already has.
func inheritNodePorts(ports, before []core.ServicePort) {
	known, used := map[string]int32{}, map[int32]bool{}
	for _, p := range before {
		known[p.Name] = p.NodePort
	}
	for _, p := range ports {
		used[p.NodePort] = p.NodePort != 0
	}
	for i := range ports {
		if p := &ports[i]; p.NodePort == 0 && !used[known[p.Name]] {
			p.NodePort = known[p.Name]
			used[p.NodePort] = p.NodePort != 0
		}
	}
}

// alignClusterIPs makes clusterIPs consistent with clusterIP, for clients that set only clusterIP. old is nil on a
// create.
func alignClusterIPs(svc, old *core.Service) {
	spec := &svc.Spec
	switch {
	case old == nil:
		if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = []string{spec.ClusterIP}
		}
	case spec.ClusterIP == old.Spec.ClusterIP:
		if len(spec.ClusterIPs) == 0 {
			spec.ClusterIPs = old.Spec.ClusterIPs
		}
	case !sameClusterIPs(svc, old):
	case spec.ClusterIP == "":
		spec.ClusterIPs = nil
	default:
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
}

func hasNodePort(s *core.Service, port int32) bool {
	return slices.ContainsFunc(s.Spec.Ports, func(p core.ServicePort) bool { return p.NodePort == port })
}

func setDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}
