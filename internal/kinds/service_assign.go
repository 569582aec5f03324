package kinds

import (
	"fmt"
	"slices"

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
	takenPorts     nodePortSet         // nil: not looked up yet
}

// allocate fills in what svc needs; old is nil on a create. The error is a StatusError.
func (p pool) allocate(svc, old *core.Service) error {
	a := &assignment{pool: p, svc: svc, old: old}
	if needsClusterIP(svc) && !a.familiesUnchanged() {
		if errs := a.families(); len(errs) > 0 {
			return a.invalid(errs...)
		}
		if err := a.clusterIPs(); err != nil {
			return err
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

// familiesUnchanged says that an update leaves alone what a Service has that prefers two families: it gets no second one because the
// cluster has it now, and keeps the one that the cluster has no more.
func (a *assignment) familiesUnchanged() bool {
	return a.old != nil && a.old.Spec.Type == a.svc.Spec.Type && policyOf(a.svc) == core.IPFamilyPolicyPreferDualStack &&
		policyOf(a.old) == core.IPFamilyPolicyPreferDualStack && sameClusterIPs(a.svc, a.old) && slices.Equal(a.svc.Spec.IPFamilies, a.old.Spec.IPFamilies)
}

// policyOf is ipFamilyPolicy, "" where there is none.
func policyOf(s *core.Service) core.IPFamilyPolicy {
	if s.Spec.IPFamilyPolicy == nil {
		return ""
	}
	return *s.Spec.IPFamilyPolicy
}

const (
	noDualStack     = "this cluster is not configured for dual-stack services"
	notForSecond    = "must be 'RequireDualStack' or 'PreferDualStack' when multiple %s are specified"
	singleToRelease = "must be 'SingleStack' to release the secondary %s"
)

// families settles ipFamilyPolicy and ipFamilies, by upstream's rules.
func (a *assignment) families() field.ErrorList {
	spec := &a.svc.Spec
	a.familyPolicy()
	if errs := validation.ValidateServiceClusterIPsRelatedFields(a.svc, a.old); len(errs) > 0 {
		return errs
	}
	errs := a.dropSecondary()
	for i, ip := range spec.ClusterIPs {
		switch family := familyOf(ip); {
		case ip == core.ClusterIPNone || i < len(spec.IPFamilies):
		case !a.has(family):
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), spec.ClusterIPs, fmt.Sprintf("%s is not configured on this cluster", family)))
		default:
			spec.IPFamilies = append(spec.IPFamilies, family)
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return a.completeFamilies()
}

// familyPolicy: an update without one keeps the one there was.
func (a *assignment) familyPolicy() {
	spec := &a.svc.Spec
	switch {
	case spec.IPFamilyPolicy != nil:
	case a.old != nil && a.old.Spec.IPFamilyPolicy != nil:
		spec.IPFamilyPolicy = a.old.Spec.IPFamilyPolicy
	case a.headlessWithoutSelector():
		spec.IPFamilyPolicy = new(core.IPFamilyPolicyRequireDualStack)
	default:
		spec.IPFamilyPolicy = new(core.IPFamilyPolicySingleStack)
	}
}

// headlessWithoutSelector is a headless Service without a selector. It may be of any family: nobody but its author knows where it leads.
func (a *assignment) headlessWithoutSelector() bool {
	return a.svc.Spec.ClusterIP == core.ClusterIPNone && len(a.svc.Spec.Selector) == 0
}

// dropSecondary drops what comes second where the policy says so, and only there.
func (a *assignment) dropSecondary() (errs field.ErrorList) {
	spec, single := &a.svc.Spec, policyOf(a.svc) == core.IPFamilyPolicySingleStack
	refuse := func(text, what string) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), spec.IPFamilyPolicy, fmt.Sprintf(text, what)))
	}
	if a.old != nil && single { // what has not changed goes: the new policy says it all
		if sameClusterIPs(a.svc, a.old) && len(spec.ClusterIPs) > 1 {
			spec.ClusterIPs = spec.ClusterIPs[:1]
		}
		if slices.Equal(spec.IPFamilies, a.old.Spec.IPFamilies) && len(spec.IPFamilies) > 1 {
			spec.IPFamilies = spec.IPFamilies[:1]
		}
	} else if a.old != nil {
		if n := len(spec.ClusterIPs); n > 0 && n < len(a.old.Spec.ClusterIPs) {
			refuse(singleToRelease, "cluster IP")
		}
		if n := len(spec.IPFamilies); n > 0 && n < len(a.old.Spec.IPFamilies) {
			refuse(singleToRelease, "IP family")
		}
	}
	if single && len(spec.ClusterIPs) == 2 {
		refuse(notForSecond, "cluster IPs")
	}
	if single && len(spec.IPFamilies) == 2 {
		refuse(notForSecond, "IP families")
	}
	return errs
}

func (a *assignment) completeFamilies() (errs field.ErrorList) {
	spec, path, dual := &a.svc.Spec, field.NewPath("spec"), len(a.ranges) > 1 || a.headlessWithoutSelector()
	if !dual && policyOf(a.svc) == core.IPFamilyPolicyRequireDualStack {
		errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), spec.IPFamilyPolicy, noDualStack))
	}
	for i, family := range spec.IPFamilies {
		if !a.has(family) && !a.headlessWithoutSelector() {
			errs = append(errs, field.Invalid(path.Child("ipFamilies").Index(i), family, "not configured on this cluster"))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	if len(spec.IPFamilies) == 0 {
		spec.IPFamilies = []core.IPFamily{familyOf(a.ranges[0].Addr().String())}
	}
	if dual && policyOf(a.svc) != core.IPFamilyPolicySingleStack && len(spec.IPFamilies) == 1 {
		other := core.IPv6Protocol
		if spec.IPFamilies[0] == other {
			other = core.IPv4Protocol
		}
		spec.IPFamilies = append(spec.IPFamilies, other)
	}
	return nil
}

func familyOf(ip string) core.IPFamily {
	if netutils.IsIPv6String(ip) {
		return core.IPv6Protocol
	}
	return core.IPv4Protocol
}

// clusterIPs gives a Service an address of each of its families, from the first that it has none of.
func (a *assignment) clusterIPs() error {
	spec, first := &a.svc.Spec, 0
	if a.old != nil && needsClusterIP(a.old) {
		first = len(a.old.Spec.IPFamilies)
	}
	if isHeadless(a.svc) || a.old != nil && isHeadless(a.old) || first >= len(spec.IPFamilies) {
		return nil
	}
	asked := slices.Clone(spec.ClusterIPs)
	for len(asked) < len(spec.IPFamilies) {
		asked = append(asked, "")
	}
	ips := slices.Clone(asked)
	for i := first; i < len(ips); i++ {
		ip, err := a.takeAddress(i, asked)
		if err != nil {
			return err
		}
		ips[i] = ip
	}
	spec.ClusterIP, spec.ClusterIPs = ips[0], ips
	return nil
}
