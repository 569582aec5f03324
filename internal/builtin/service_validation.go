package builtin

import (
	"fmt"
	"net"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/object"
)

const (
	onlyLoadBalancer = "may only be used when `type` is 'LoadBalancer'"
	notChangeable    = "may not change once set"
	notExternalName  = "may not be set for ExternalName services"
	preferClose      = "PreferClose"
	kubeletPort      = 10250
	maxAffinity      = 86400 // seconds
)

// The values that fields may have, as they are listed to those who miss them.
func protocols() []corev1.Protocol {
	return []corev1.Protocol{corev1.ProtocolSCTP, corev1.ProtocolTCP, corev1.ProtocolUDP}
}

func validateService(_, obj, oldObj object.Tree, sub string) field.ErrorList {
	svc := goForm[corev1.Service](obj)
	if oldObj == nil {
		return validateServiceAlone(svc)
	}
	old := goForm[corev1.Service](oldObj)
	if sub == "status" {
		return validateLoadBalancerStatus(svc)
	}
	errs := validateFixedIPs(svc, old)
	path := field.NewPath("spec")
	if isLoadBalancer(svc) && isLoadBalancer(old) && !same(svc.Spec.LoadBalancerClass, old.Spec.LoadBalancerClass) {
		errs = append(errs, field.Invalid(path.Child("loadBalancerClass"), svc.Spec.LoadBalancerClass, notChangeable))
	}
	errs = append(errs, validateLoadBalancerClass(svc)...)
	if needsHealthCheck(svc) && needsHealthCheck(old) && svc.Spec.HealthCheckNodePort != old.Spec.HealthCheckNodePort {
		errs = append(errs, field.Forbidden(path.Child("healthCheckNodePort"), "field is immutable"))
	}
	return append(errs, validateServiceAlone(svc)...)
}

// validateFixedIPs refuses another address or family where there was one.
func validateFixedIPs(svc, old *corev1.Service) (errs field.ErrorList) {
	if !needsClusterIP(svc) || !needsClusterIP(old) || isHeadless(svc) && isHeadless(old) {
		return nil
	}
	path, ips, before := field.NewPath("spec", "clusterIPs"), svc.Spec.ClusterIPs, old.Spec.ClusterIPs
	if len(ips) == 0 && len(before) > 0 {
		errs = append(errs, field.Invalid(path.Index(0), ips, "primary clusterIP can not be unset"))
	}
	for i := range min(len(ips), len(before)) {
		if ips[i] != before[i] {
			errs = append(errs, field.Invalid(path.Index(i), ips, notChangeable))
		}
	}
	if isHeadless(svc) || isHeadless(old) {
		return errs
	}
	families, familiesBefore := svc.Spec.IPFamilies, old.Spec.IPFamilies
	for i := range min(len(families), len(familiesBefore)) {
		if families[i] != familiesBefore[i] {
			errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilies").Index(0), families, notChangeable))
		}
	}
	return errs
}

// validateServiceAlone looks at a Service by itself.
func validateServiceAlone(svc *corev1.Service) (errs field.ErrorList) {
	spec, path := &svc.Spec, field.NewPath("spec")
	hints, hinted := svc.Annotations[topologyHints]
	if mode, ok := svc.Annotations[corev1.AnnotationTopologyMode]; ok && hinted && mode != hints {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations").Key(corev1.AnnotationTopologyMode), mode,
			fmt.Sprintf("must match annotations[%s] when both are specified", topologyHints)))
	}
	if len(spec.Ports) == 0 && !isHeadless(svc) && needsClusterIP(svc) {
		errs = append(errs, field.Required(path.Child("ports"), ""))
	}
	errs = append(errs, validateForType(svc, path)...)
	names := map[string]bool{}
	for i := range spec.Ports {
		errs = append(errs, validateServicePort(&spec.Ports[i], len(spec.Ports) > 1, names, path.Child("ports").Index(i))...)
	}
	errs = append(errs, metav1validation.ValidateLabels(spec.Selector, path.Child("selector"))...)
	errs = append(errs, validateAffinity(spec, path)...)
	errs = append(errs, validateClusterIPs(svc)...)
	for i, ip := range spec.ExternalIPs {
		at := path.Child("externalIPs").Index(i)
		if wrong := validation.IsValidIPForLegacyField(at, ip, true, nil); len(wrong) > 0 {
			errs = append(errs, wrong...)
		} else {
			errs = append(errs, validateReachableIP(ip, at)...)
		}
	}
	errs = append(errs, oneOf(path.Child("type"), spec.Type, corev1.ServiceTypeClusterIP, corev1.ServiceTypeExternalName, corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeNodePort)...)
	errs = append(errs, validateServicePorts(svc, path.Child("ports"))...)
	errs = append(errs, validateSourceRanges(svc)...)
	if spec.AllocateLoadBalancerNodePorts != nil && !isLoadBalancer(svc) {
		errs = append(errs, field.Forbidden(path.Child("allocateLoadBalancerNodePorts"), onlyLoadBalancer))
	}
	errs = append(errs, validateLoadBalancerClass(svc)...)
	return append(errs, validateTraffic(svc, path)...)
}

// oneOf demands one of the values, which are sorted.
func oneOf[T ~string](path *field.Path, value T, values ...T) field.ErrorList {
	switch {
	case value == "":
		return field.ErrorList{field.Required(path, "")}
	case !slices.Contains(values, value):
		return field.ErrorList{field.NotSupported(path, value, values)}
	}
	return nil
}

// supported demands one of the values, which are sorted, of a field that may be left out.
func supported[T ~string](path *field.Path, value *T, values ...T) field.ErrorList {
	if value == nil || slices.Contains(values, *value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, *value, values)}
}

// validateForType is what each type demands by itself.
func validateForType(svc *corev1.Service, path *field.Path) (errs field.ErrorList) {
	spec := &svc.Spec
	if isLoadBalancer(svc) {
		for i, p := range spec.Ports {
			if p.Port == kubeletPort {
				errs = append(errs, field.Invalid(path.Child("ports").Index(i), p.Port, fmt.Sprintf("may not expose port %v externally since it is used by kubelet", kubeletPort)))
			}
		}
	}
	if needsNodePort(svc) && isHeadless(svc) {
		errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(0), spec.ClusterIPs[0], fmt.Sprintf("may not be set to 'None' for %s services", spec.Type)))
	}
	if needsClusterIP(svc) {
		return errs
	}
	forbid := func(set bool, name string) {
		if set {
			errs = append(errs, field.Forbidden(path.Child(name), notExternalName))
		}
	}
	forbid(len(spec.ClusterIPs) > 0, "clusterIPs")
	forbid(len(spec.IPFamilies) > 0, "ipFamilies")
	forbid(spec.IPFamilyPolicy != nil, "ipFamilyPolicy")
	at := path.Child("externalName")
	name := strings.TrimSuffix(spec.ExternalName, ".")
	if name == "" {
		return append(errs, field.Required(at, ""))
	}
	return append(errs, invalid(at, name, validation.IsDNS1123Subdomain(name))...)
}

// invalid makes an error of each message.
func invalid(path *field.Path, value any, messages []string) (errs field.ErrorList) {
	for _, m := range messages {
		errs = append(errs, field.Invalid(path, value, m))
	}
	return errs
}

func validateServicePort(p *corev1.ServicePort, needsName bool, names map[string]bool, path *field.Path) (errs field.ErrorList) {
	if p.Name == "" {
		if needsName {
			errs = append(errs, field.Required(path.Child("name"), ""))
		}
	} else {
		errs = append(errs, invalid(path.Child("name"), p.Name, validation.IsDNS1123Label(p.Name))...)
		if names[p.Name] {
			errs = append(errs, field.Duplicate(path.Child("name"), p.Name))
		}
		names[p.Name] = true
	}
	errs = append(errs, invalid(path.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))...)
	errs = append(errs, oneOf(path.Child("protocol"), p.Protocol, protocols()...)...)
	if t := p.TargetPort; t.Type == intstr.Int {
		errs = append(errs, invalid(path.Child("targetPort"), t.IntValue(), validation.IsValidPortNum(t.IntValue()))...)
	} else {
		errs = append(errs, invalid(path.Child("targetPort"), t.StrVal, validation.IsValidPortName(t.StrVal))...)
	}
	return append(errs, validateAppProtocol(p.AppProtocol, path)...)
}

func validateAppProtocol(p *string, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	return invalid(path.Child("appProtocol"), *p, validation.IsQualifiedName(*p))
}

// validateServicePorts looks for what may be there but once.
func validateServicePorts(svc *corev1.Service, path *field.Path) (errs field.ErrorList) {
	type pair struct { // as it is shown
		Name, Protocol   string
		AppProtocol      *string
		Port, TargetPort int32
		NodePort         int32
	}
	nodePorts, ports := map[pair]bool{}, map[pair]bool{}
	for i, p := range svc.Spec.Ports {
		if isClusterIP(svc) && p.NodePort != 0 {
			errs = append(errs, field.Forbidden(path.Index(i).Child("nodePort"), "may not be used when `type` is 'ClusterIP'"))
		}
	}
	for i, p := range svc.Spec.Ports {
		key := pair{Protocol: string(p.Protocol), NodePort: p.NodePort}
		if p.NodePort != 0 && nodePorts[key] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("nodePort"), p.NodePort))
		}
		nodePorts[key] = true
	}
	for i, p := range svc.Spec.Ports {
		key := pair{Protocol: string(p.Protocol), Port: p.Port}
		if ports[key] {
			errs = append(errs, field.Duplicate(path.Index(i), key))
		}
		ports[key] = true
	}
	return errs
}

func validateAffinity(spec *corev1.ServiceSpec, path *field.Path) field.ErrorList {
	errs := oneOf(path.Child("sessionAffinity"), spec.SessionAffinity, corev1.ServiceAffinityClientIP, corev1.ServiceAffinityNone)
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return errs // the default has dropped what else there was
	}
	seconds := *spec.SessionAffinityConfig.ClientIP.TimeoutSeconds // has a default
	if seconds <= 0 || seconds > maxAffinity {
		errs = append(errs, field.Invalid(path.Child("sessionAffinityConfig", "clientIP", "timeoutSeconds"), seconds, fmt.Sprintf("must be greater than 0 and less than %d", maxAffinity)))
	}
	return errs
}

// validateClusterIPs looks at clusterIP, clusterIPs, ipFamilies and ipFamilyPolicy.
func validateClusterIPs(svc *corev1.Service) (errs field.ErrorList) {
	if !needsClusterIP(svc) {
		return nil // has none of them
	}
	spec, ips, path := &svc.Spec, field.NewPath("spec", "clusterIPs"), field.NewPath("spec")
	switch {
	case spec.ClusterIP == "" && len(spec.ClusterIPs) > 0:
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "must be empty when `clusterIP` is not specified"))
	case spec.ClusterIP != "" && len(spec.ClusterIPs) == 0:
		errs = append(errs, field.Required(ips, ""))
	case spec.ClusterIP != "" && spec.ClusterIPs[0] != spec.ClusterIP:
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "first value must match `clusterIP`"))
	}
	for i, f := range spec.IPFamilies {
		at := path.Child("ipFamilies").Index(i)
		errs = append(errs, supported(at, &f, corev1.IPv4Protocol, corev1.IPv6Protocol)...)
		if slices.Contains(spec.IPFamilies[:i], f) {
			errs = append(errs, field.Duplicate(at, f))
		}
	}
	errs = append(errs, supported(path.Child("ipFamilyPolicy"), spec.IPFamilyPolicy,
		corev1.IPFamilyPolicyPreferDualStack, corev1.IPFamilyPolicyRequireDualStack, corev1.IPFamilyPolicySingleStack)...)
	wrong := false
	for i, ip := range spec.ClusterIPs {
		if i == 0 && ip == corev1.ClusterIPNone {
			if len(spec.ClusterIPs) > 1 {
				wrong = true
				errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "'None' must be the first and only value"))
			}
			continue
		}
		unfit := validation.IsValidIPForLegacyField(ips.Index(i), ip, true, nil)
		wrong = wrong || len(unfit) > 0
		errs = append(errs, unfit...)
	}
	if len(spec.ClusterIPs) > 2 {
		errs = append(errs, field.Invalid(ips, spec.ClusterIPs, "may only hold up to 2 values"))
	}
	if wrong {
		return errs
	}
	return append(errs, validateFamiliesOfIPs(svc, ips)...)
}

// validateFamiliesOfIPs: at most one address of a family, in the order of ipFamilies.
func validateFamiliesOfIPs(svc *corev1.Service, path *field.Path) (errs field.ErrorList) {
	ips := svc.Spec.ClusterIPs
	if n := len(ips); n > 2 || n == 2 && isIPv6(ips[0]) == isIPv6(ips[1]) {
		errs = append(errs, field.Invalid(path, ips, "may specify no more than one IP for each IP family"))
	}
	if isHeadless(svc) {
		return errs
	}
	for i := range min(len(ips), len(svc.Spec.IPFamilies)) {
		if f := svc.Spec.IPFamilies[i]; (f == corev1.IPv6Protocol) != isIPv6(ips[i]) {
			errs = append(errs, field.Invalid(path.Index(i), ips[i], fmt.Sprintf("expected an %s value as indicated by `ipFamilies[%v]`", f, i)))
		}
	}
	return errs
}

func isIPv6(ip string) bool { return strings.Contains(ip, ":") }

// validateReachableIP refuses addresses that mean something else on every machine.
func validateReachableIP(value string, path *field.Path) (errs field.ErrorList) {
	ip := net.ParseIP(value)
	switch {
	case ip == nil:
		return invalid(path, value, []string{"must be a valid IP address"})
	case ip.IsUnspecified():
		return invalid(path, value, []string{fmt.Sprintf("may not be unspecified (%v)", value)})
	case ip.IsLoopback():
		return invalid(path, value, []string{"may not be in the loopback range (127.0.0.0/8, ::1/128)"})
	case ip.IsLinkLocalUnicast():
		return invalid(path, value, []string{"may not be in the link-local range (169.254.0.0/16, fe80::/10)"})
	case ip.IsLinkLocalMulticast():
		return invalid(path, value, []string{"may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"})
	}
	return nil
}

// validateSourceRanges looks at the field or, where it is empty, at the annotation that came before it.
func validateSourceRanges(svc *corev1.Service) (errs field.ErrorList) {
	path, ranges := field.NewPath("spec", "LoadBalancerSourceRanges"), svc.Spec.LoadBalancerSourceRanges
	at := path.Index
	if len(ranges) == 0 {
		value, ok := svc.Annotations[corev1.AnnotationLoadBalancerSourceRangesKey]
		if !ok {
			return nil
		}
		path = field.NewPath("metadata", "annotations").Key(corev1.AnnotationLoadBalancerSourceRangesKey)
		at = func(int) *field.Path { return path }
		if value = strings.TrimSpace(value); value != "" {
			ranges = strings.Split(value, ",")
		}
	}
	if !isLoadBalancer(svc) {
		errs = append(errs, field.Forbidden(path, onlyLoadBalancer))
	}
	for i, r := range ranges { // may be padded with spaces, by an accident of history
		errs = append(errs, validation.IsValidCIDRForLegacyField(at(i), strings.TrimSpace(r), true, nil)...)
	}
	return errs
}

func validateLoadBalancerClass(svc *corev1.Service) field.ErrorList {
	class, path := svc.Spec.LoadBalancerClass, field.NewPath("spec", "loadBalancerClass")
	switch {
	case class == nil:
		return nil
	case !isLoadBalancer(svc):
		return field.ErrorList{field.Forbidden(path, onlyLoadBalancer)}
	}
	return invalid(path, *class, validation.IsQualifiedName(*class))
}

// validateTraffic looks at the policies and at the port for health checks, which one of them needs.
func validateTraffic(svc *corev1.Service, path *field.Path) (errs field.ErrorList) {
	spec := &svc.Spec
	if at := path.Child("externalTrafficPolicy"); isExternal(svc) {
		errs = append(errs, oneOf(at, spec.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)...)
	} else if spec.ExternalTrafficPolicy != "" {
		errs = append(errs, field.Invalid(at, spec.ExternalTrafficPolicy, "may only be set for externally-accessible services"))
	}
	if port, at := spec.HealthCheckNodePort, path.Child("healthCheckNodePort"); needsHealthCheck(svc) {
		errs = append(errs, invalid(at, port, validation.IsValidPortNum(int(port)))...)
	} else if port != 0 {
		errs = append(errs, field.Invalid(at, port, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"))
	}
	errs = append(errs, supported(path.Child("internalTrafficPolicy"), spec.InternalTrafficPolicy,
		corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)...)
	return append(errs, supported(path.Child("trafficDistribution"), spec.TrafficDistribution,
		preferClose, corev1.ServiceTrafficDistributionPreferSameNode, corev1.ServiceTrafficDistributionPreferSameZone)...)
}

func validateLoadBalancerStatus(svc *corev1.Service) (errs field.ErrorList) {
	path, ingress := field.NewPath("status", "loadBalancer", "ingress"), svc.Status.LoadBalancer.Ingress
	if !isLoadBalancer(svc) && len(ingress) > 0 {
		return field.ErrorList{field.Forbidden(path, "may only be used when `spec.type` is 'LoadBalancer'")}
	}
	for i, in := range ingress {
		at := path.Index(i)
		if in.IP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(at.Child("ip"), in.IP, true, nil)...)
		}
		if in.IPMode != nil && in.IP == "" {
			errs = append(errs, field.Forbidden(at.Child("ipMode"), "may not be specified when `ip` is not set"))
		} else {
			errs = append(errs, supported(at.Child("ipMode"), in.IPMode, corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP)...)
		}
		if in.Hostname == "" {
			continue
		}
		errs = append(errs, invalid(at.Child("hostname"), in.Hostname, validation.IsDNS1123Subdomain(in.Hostname))...)
		if net.ParseIP(in.Hostname) != nil {
			errs = append(errs, field.Invalid(at.Child("hostname"), in.Hostname, "must be a DNS name, not an IP address"))
		}
	}
	return errs
}
