package builtin

import (
	"context"
	"fmt"
	"net"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Service: what is filled in, what a change of type takes with it, what is warned of. Its fields hang
// together in so many ways that it is worked on in its Go form.

func services(c Config) kind {
	e := at(corev1.SchemeGroupVersion, &corev1.Service{}, &corev1.ServiceList{})
	e.validate = validateService
	p := newPool(c)
	return kind{
		endpoint: e,
		plural:   "services", short: "svc", categories: "all", prefix: servicePrefix,
		status: true, createOnUpdate: true,
		columns:    serviceColumns,
		selectable: fields("spec.clusterIP", "spec.type"),
		behavior: resource.Behavior{
			ValidateName:  apivalidation.NameIsDNSLabel,
			Default:       defaultService,
			PrepareCreate: p.prepareCreate,
			PrepareUpdate: p.prepareUpdate,
			Guards:        p.guards,
			Warnings:      serviceWarnings,
			ResetOnWrite:  []string{"status"},
			ResetOnStatus: []string{"spec"},
		},
	}
}

// goForm is the Go form of a tree that came out of the same Go type, and so fits it.
func goForm[T any](t object.Tree) *T {
	out := new(T)
	if t != nil {
		_ = runtime.DefaultUnstructuredConverter.FromUnstructured(t, out)
	}
	return out
}

// putService makes the spec and the status of svc those of obj. It replaces them: an attempt that fails must
// leave no trace in what the next one starts from.
func putService(obj object.Tree, svc *corev1.Service) error {
	t, err := resource.ToTree(svc)
	if err == nil {
		obj["spec"], obj["status"] = t["spec"], t["status"]
	}
	return err
}

func defaultService(obj object.Tree) {
	svc := goForm[corev1.Service](obj)
	spec := &svc.Spec
	setDefault(&spec.SessionAffinity, corev1.ServiceAffinityNone)
	setDefault(&spec.Type, corev1.ServiceTypeClusterIP)
	switch c := spec.SessionAffinityConfig; {
	case spec.SessionAffinity == corev1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case spec.SessionAffinity == corev1.ServiceAffinityClientIP && (c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil):
		spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(corev1.DefaultClientIPServiceAffinitySeconds)}}
	}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		setDefault(&p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if isExternal(svc) {
		setDefault(&spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
	}
	if isClusterIP(svc) || needsNodePort(svc) {
		setDefault(&spec.InternalTrafficPolicy, new(corev1.ServiceInternalTrafficPolicyCluster))
	}
	if isLoadBalancer(svc) {
		setDefault(&spec.AllocateLoadBalancerNodePorts, new(true))
		for i := range svc.Status.LoadBalancer.Ingress {
			if in := &svc.Status.LoadBalancer.Ingress[i]; in.IP != "" {
				setDefault(&in.IPMode, new(corev1.LoadBalancerIPModeVIP))
			}
		}
	}
	_ = putService(obj, svc) // it came from a tree
}

func setDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

func isClusterIP(s *corev1.Service) bool    { return s.Spec.Type == corev1.ServiceTypeClusterIP }
func isLoadBalancer(s *corev1.Service) bool { return s.Spec.Type == corev1.ServiceTypeLoadBalancer }
func needsClusterIP(s *corev1.Service) bool { return s.Spec.Type != corev1.ServiceTypeExternalName }

func needsNodePort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || isLoadBalancer(s)
}

func needsHealthCheck(s *corev1.Service) bool {
	return isLoadBalancer(s) && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// isExternal: traffic may come from outside the cluster.
func isExternal(s *corev1.Service) bool {
	return needsNodePort(s) || isClusterIP(s) && len(s.Spec.ExternalIPs) > 0
}

func isHeadless(s *corev1.Service) bool {
	return len(s.Spec.ClusterIPs) == 1 && s.Spec.ClusterIPs[0] == corev1.ClusterIPNone
}

func sameClusterIPs(a, b *corev1.Service) bool {
	return slices.Equal(a.Spec.ClusterIPs, b.Spec.ClusterIPs)
}

// same compares what pointers, slices or values hold.
func same[T any](a, b T) bool { return reflect.DeepEqual(a, b) }

// inherit gives svc what was allocated for old and the client left out.
func inherit(svc, old *corev1.Service) {
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

// inheritNodePorts: ports are known by their names, whatever else of them has changed.
func inheritNodePorts(ports, before []corev1.ServicePort) {
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

// alignClusterIPs lets clients that know clusterIP alone write it; old is nil on a create.
func alignClusterIPs(svc, old *corev1.Service) {
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

// dropDependent clears what the new type of a Service has no use for, unless the client has changed it as well.
func dropDependent(svc, old *corev1.Service) {
	spec, before := &svc.Spec, &old.Spec
	if needsClusterIP(old) && !needsClusterIP(svc) {
		if spec.ClusterIP == before.ClusterIP && sameClusterIPs(svc, old) {
			spec.ClusterIP, spec.ClusterIPs = "", nil
		}
		dropSame(&spec.IPFamilies, before.IPFamilies)
		dropSame(&spec.IPFamilyPolicy, before.IPFamilyPolicy)
	}
	if needsNodePort(old) && !needsNodePort(svc) {
		if !slices.ContainsFunc(spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort != 0 && !hasNodePort(old, p.NodePort) }) {
			for i := range spec.Ports {
				spec.Ports[i].NodePort = 0
			}
		}
		dropSame(&spec.ExternalTrafficPolicy, before.ExternalTrafficPolicy)
	}
	if needsHealthCheck(old) && !needsHealthCheck(svc) {
		dropSame(&spec.HealthCheckNodePort, before.HealthCheckNodePort)
	}
	if isLoadBalancer(old) && !isLoadBalancer(svc) {
		dropSame(&spec.AllocateLoadBalancerNodePorts, before.AllocateLoadBalancerNodePorts)
		dropSame(&spec.LoadBalancerClass, before.LoadBalancerClass)
	}
	if !isLoadBalancer(svc) {
		svc.Status.LoadBalancer = corev1.LoadBalancerStatus{}
	}
}

func dropSame[T any](v *T, before T) {
	if same(*v, before) {
		*v = *new(T)
	}
}

func hasNodePort(s *corev1.Service, port int32) bool {
	return slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort == port })
}

const topologyHints = "service.kubernetes.io/topology-aware-hints"

func serviceWarnings(obj, _ object.Tree) []string {
	svc, path := goForm[corev1.Service](obj), field.NewPath("spec")
	spec := &svc.Spec
	var warnings []string
	warn := func(when bool, format string, args ...any) {
		if when {
			warnings = append(warnings, fmt.Sprintf(format, args...))
		}
	}
	_, hinted := svc.Annotations[topologyHints]
	warn(hinted, "annotation %s is deprecated, please use %s instead", topologyHints, corev1.AnnotationTopologyMode)
	headless, externalName := isClusterIP(svc) && spec.ClusterIP == corev1.ClusterIPNone, !needsClusterIP(svc)
	if !headless && !externalName {
		warnings = append(warnings, ipWarnings(path.Child("clusterIPs"), spec.ClusterIPs)...)
	}
	warn(headless && spec.LoadBalancerIP != "", "spec.loadBalancerIP is ignored for headless services")
	warn(headless && len(spec.ExternalIPs) > 0, "spec.externalIPs is ignored for headless services")
	warn(headless && spec.SessionAffinity != corev1.ServiceAffinityNone, "spec.SessionAffinity is ignored for headless services")
	warnings = append(warnings, ipWarnings(path.Child("externalIPs"), spec.ExternalIPs)...)
	warn(len(spec.ExternalIPs) > 0 && !headless && !externalName, "spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	if net.ParseIP(spec.LoadBalancerIP) != nil {
		warnings = append(warnings, validation.GetWarningsForIP(path.Child("loadBalancerIP"), spec.LoadBalancerIP)...)
	}
	for i, cidr := range spec.LoadBalancerSourceRanges {
		warnings = append(warnings, validation.GetWarningsForCIDR(path.Child("loadBalancerSourceRanges").Index(i), strings.TrimSpace(cidr))...)
	}
	warn(externalName && len(spec.ExternalIPs) > 0, "spec.externalIPs is ignored when spec.type is %q", corev1.ServiceTypeExternalName)
	warn(!externalName && spec.ExternalName != "", "spec.externalName is ignored when spec.type is not %q", corev1.ServiceTypeExternalName)
	warn(spec.TrafficDistribution != nil && *spec.TrafficDistribution == preferClose,
		"spec.trafficDistribution: %q is deprecated; use %q", preferClose, corev1.ServiceTrafficDistributionPreferSameZone)
	return warnings
}

// ipWarnings are those for addresses in unusual forms.
func ipWarnings(path *field.Path, ips []string) []string {
	var warnings []string
	for i, ip := range ips {
		warnings = append(warnings, validation.GetWarningsForIP(path.Index(i), ip)...)
	}
	return warnings
}

func (p pool) prepareCreate(_ context.Context, obj object.Tree) error {
	svc := goForm[corev1.Service](obj)
	alignClusterIPs(svc, nil)
	if err := p.allocate(svc, nil); err != nil {
		return err
	}
	return putService(obj, svc)
}

func (p pool) prepareUpdate(_ context.Context, obj, old object.Tree, sub string) error {
	if sub != "" {
		return nil
	}
	svc, before := goForm[corev1.Service](obj), goForm[corev1.Service](old)
	inherit(svc, before)
	alignClusterIPs(svc, before)
	if err := p.allocate(svc, before); err != nil {
		return err
	}
	dropDependent(svc, before)
	return putService(obj, svc)
}
