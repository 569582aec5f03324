package builtin

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	netutils "k8s.io/utils/net"
)

// assignment gives one Service families, addresses and node ports, before anything else of it is looked at.
type assignment struct {
	pool
	svc, old *core.Service // old is nil on a create
	held     *taken        // nil: not looked up yet
}

// allocate fills in what svc needs; old is nil on a create. The error is a StatusError.
func (p pool) allocate(svc, old *core.Service) error {
	a := &assignment{pool: p, svc: svc, old: old}
	if needsClusterIP(svc) {
		if errs := a.families(); len(errs) > 0 {
			return a.invalid(errs...)
		}
		if !isHeadless(svc) && (old == nil || !needsClusterIP(old)) {
			if err := a.clusterIP(); err != nil {
				return err
			}
		}
	}
	if needsNodePort(svc) {
		if err := a.nodePorts(); err != nil {
			return err
		}
	}
	if needsHealthCheck(svc) && (old == nil || !needsHealthCheck(old)) {
		return a.healthCheckPort()
	}
	return nil
}

func (a *assignment) invalid(errs ...*field.Error) error {
	return apierrors.NewInvalid(core.Kind("Service"), a.svc.Name, errs)
}

// others is what is taken by other Services, and by this one since the attempt began.
func (a *assignment) others() taken {
	if a.held == nil {
		held := newTaken()
		if a.head != nil {
			held = heldByOthers(a.head(), serviceKey(a.svc.Namespace, a.svc.Name))
		}
		for _, p := range a.svc.Spec.Ports {
			if a.old != nil && hasNodePort(a.old, p.NodePort) {
				held.ports[p.NodePort] = true
			}
		}
		a.held = &held
	}
	return *a.held
}

const (
	notForSecond = "must be 'RequireDualStack' or 'PreferDualStack' when multiple %s are specified"
	noDualStack  = "this cluster is not configured for dual-stack services"
)

// families settles ipFamilyPolicy and ipFamilies. There is one family here, IPv4; a headless Service without a
// selector may be of any, since nobody but its author knows where it leads.
func (a *assignment) families() field.ErrorList {
	spec, path := &a.svc.Spec, field.NewPath("spec")
	a.familyPolicy()
	if errs := validation.ValidateServiceClusterIPsRelatedFields(a.svc, a.old); len(errs) > 0 {
		return errs
	}
	var errs field.ErrorList
	single := *spec.IPFamilyPolicy == core.IPFamilyPolicySingleStack
	if single && a.old != nil && len(spec.IPFamilies) > 1 && same(spec.IPFamilies, a.old.Spec.IPFamilies) {
		spec.IPFamilies = spec.IPFamilies[:1] // the new policy says it all
	}
	if !single && a.old != nil && len(spec.IPFamilies) == 1 && len(a.old.Spec.IPFamilies) == 2 && spec.IPFamilies[0] == a.old.Spec.IPFamilies[0] {
		errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), spec.IPFamilyPolicy, "must be 'SingleStack' to release the secondary IP family"))
	}
	if single && len(spec.ClusterIPs) == 2 {
		errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), spec.IPFamilyPolicy, fmt.Sprintf(notForSecond, "cluster IPs")))
	}
	if single && len(spec.IPFamilies) == 2 {
		errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), spec.IPFamilyPolicy, fmt.Sprintf(notForSecond, "IP families")))
	}
	for i, ip := range spec.ClusterIPs {
		switch {
		case ip == core.ClusterIPNone || i < len(spec.IPFamilies):
		case netutils.IsIPv6String(ip):
			errs = append(errs, field.Invalid(path.Child("clusterIPs").Index(i), spec.ClusterIPs, "IPv6 is not configured on this cluster"))
		default:
			spec.IPFamilies = append(spec.IPFamilies, core.IPv4Protocol)
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return a.settleFamilies(single, path)
}

// familyPolicy: an update without one keeps the one there was.
func (a *assignment) familyPolicy() {
	spec := &a.svc.Spec
	switch {
	case spec.IPFamilyPolicy != nil:
	case a.old != nil && a.old.Spec.IPFamilyPolicy != nil:
		spec.IPFamilyPolicy = a.old.Spec.IPFamilyPolicy
	case spec.ClusterIP == core.ClusterIPNone && len(spec.Selector) == 0:
		spec.IPFamilyPolicy = new(core.IPFamilyPolicyRequireDualStack)
	default:
		spec.IPFamilyPolicy = new(core.IPFamilyPolicySingleStack)
	}
}

func (a *assignment) settleFamilies(single bool, path *field.Path) (errs field.ErrorList) {
	spec := &a.svc.Spec
	free := spec.ClusterIP == core.ClusterIPNone && len(spec.Selector) == 0
	if !free && *spec.IPFamilyPolicy == core.IPFamilyPolicyRequireDualStack {
		errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), spec.IPFamilyPolicy, noDualStack))
	}
	for i, family := range spec.IPFamilies {
		if !free && family != core.IPv4Protocol {
			errs = append(errs, field.Invalid(path.Child("ipFamilies").Index(i), family, "not configured on this cluster"))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []core.IPFamily{core.IPv4Protocol}
	}
	if free && !single && len(spec.IPFamilies) == 1 {
		other := core.IPv6Protocol
		if spec.IPFamilies[0] == other {
			other = core.IPv4Protocol
		}
		spec.IPFamilies = append(spec.IPFamilies, other)
	}
	return nil
}

// clusterIP takes the address that is asked for, or any that is free.
func (a *assignment) clusterIP() error {
	spec, held := &a.svc.Spec, a.others().ips
	size := 1<<(32-a.ips.Bits()) - 2 // without the addresses of the network and of all in it
	if len(spec.ClusterIPs) == 0 {
		n, ok := pick(size, clamp(size/16, 16, 256), func(n int) bool { return held[a.nth(n)] })
		if !ok {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP: %w", errFull))
		}
		spec.ClusterIP = a.nth(n)
		spec.ClusterIPs = []string{spec.ClusterIP}
		return nil
	}
	var wrong error
	addr, err := netip.ParseAddr(spec.ClusterIPs[0])
	switch {
	case err != nil || !a.ips.Contains(addr) || addr.String() == a.nth(-1) || addr.String() == a.nth(size):
		wrong = errOutsideIP
	case held[addr.String()]:
		wrong = errTakenIP
	default:
		return nil
	}
	return a.invalid(field.Invalid(field.NewPath("spec", "clusterIPs"), spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", spec.ClusterIPs[0], wrong)))
}

// nth is an address of the range, counted from its first host.
func (a *assignment) nth(n int) string {
	base := a.ips.Addr().As4()
	var ip [4]byte
	binary.BigEndian.PutUint32(ip[:], uint32(int64(binary.BigEndian.Uint32(base[:]))+int64(n)+1))
	return netip.AddrFrom4(ip).String()
}

// nodePorts gives every port one, where the Service wants any. Ports of the same number, of different protocols,
// share one when the Service is made.
func (a *assignment) nodePorts() error {
	ports, shared := a.svc.Spec.Ports, map[int32]int32{}
	wanted := !isLoadBalancer(a.svc) || a.svc.Spec.AllocateLoadBalancerNodePorts == nil || *a.svc.Spec.AllocateLoadBalancerNodePorts
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
				p.NodePort = requested(ports, p.Port)
			}
			if p.NodePort != 0 && p.NodePort == shared[p.Port] {
				continue
			}
		}
		if err := a.port(&p.NodePort); errors.Is(err, errFull) {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
		} else if err != nil {
			return a.invalid(field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), p.NodePort, err.Error()))
		}
		shared[p.Port] = p.NodePort
	}
	return nil
}

// requested is the node port that a port of this number asks for, 0 for none.
func requested(ports []core.ServicePort, number int32) int32 {
	for _, p := range ports {
		if p.Port == number && p.NodePort != 0 {
			return p.NodePort
		}
	}
	return 0
}

// port takes the node port *port, or any for 0.
func (a *assignment) port(port *int32) error {
	held := a.others().ports
	switch {
	case *port == 0:
		n, ok := pick(a.ports.Size, clamp(a.ports.Size/32, 16, 128), func(n int) bool { return held[int32(a.ports.Base+n)] })
		if !ok {
			return errFull
		}
		*port = int32(a.ports.Base + n)
	case !a.ports.Contains(int(*port)):
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", a.ports)
	case held[*port]:
		return errTakenPort
	}
	held[*port] = true
	return nil
}

func (a *assignment) healthCheckPort() error {
	port := &a.svc.Spec.HealthCheckNodePort
	err := a.port(port)
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

// pick finds a free number below size, at random: from those above reserved while there are any, the lower
// ones being left to those who ask for one (KEP-3070, KEP-3668).
func pick(size, reserved int, taken func(int) bool) (int, bool) {
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
