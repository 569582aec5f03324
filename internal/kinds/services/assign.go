package services

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	netutils "k8s.io/utils/net"
)

// assignment assigns families, addresses and node ports to one Service. This happens before the Service is validated.
type assignment struct {
	Pool
	svc, old   *core.Service // old is nil on a create
	takenPorts nodePortSet   // nil means not computed yet
}

// allocate sets the families, addresses and ports that svc needs. old is nil on a create. The error is a StatusError.
func (p Pool) allocate(svc, old *core.Service) error {
	a := &assignment{Pool: p, svc: svc, old: old}
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

// familiesUnchanged reports whether an update keeps the type, the families and the addresses of a Service with the
// policy PreferDualStack. Such an update adds and removes no families, even if the configured families of the cluster
// have changed.
func (a *assignment) familiesUnchanged() bool {
	return a.old != nil && a.old.Spec.Type == a.svc.Spec.Type &&
		policyOf(a.svc) == core.IPFamilyPolicyPreferDualStack &&
		policyOf(a.old) == core.IPFamilyPolicyPreferDualStack && sameClusterIPs(a.svc, a.old) &&
		slices.Equal(a.svc.Spec.IPFamilies, a.old.Spec.IPFamilies)
}

// policyOf returns the ipFamilyPolicy of a Service, or "" if it has none.
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

// families validates and completes ipFamilyPolicy and ipFamilies, by upstream's rules.
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
			errs = append(errs, field.Invalid(field.NewPath("spec", "clusterIPs").Index(i), spec.ClusterIPs,
				fmt.Sprintf("%s is not configured on this cluster", family)))
		default:
			spec.IPFamilies = append(spec.IPFamilies, family)
		}
	}
	if len(errs) > 0 {
		return errs
	}
	return a.completeFamilies()
}

// familyPolicy sets a missing ipFamilyPolicy. An update without one keeps the old one.
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

// headlessWithoutSelector reports whether the Service is headless and has no selector. Such a Service may have
// families that are not configured on the cluster, because its endpoints may be outside of the cluster.
func (a *assignment) headlessWithoutSelector() bool {
	return a.svc.Spec.ClusterIP == core.ClusterIPNone && len(a.svc.Spec.Selector) == 0
}

// dropSecondary drops the secondary address and family in an update to the policy SingleStack. It returns errors if
// the client drops them under another policy or specifies them under SingleStack.
func (a *assignment) dropSecondary() (errs field.ErrorList) {
	spec, single := &a.svc.Spec, policyOf(a.svc) == core.IPFamilyPolicySingleStack
	invalid := func(format, part string) {
		errs = append(errs, field.Invalid(field.NewPath("spec", "ipFamilyPolicy"), spec.IPFamilyPolicy,
			fmt.Sprintf(format, part)))
	}
	if a.old != nil && single { // a list that the client has not changed does not request the secondary item
		if sameClusterIPs(a.svc, a.old) && len(spec.ClusterIPs) > 1 {
			spec.ClusterIPs = spec.ClusterIPs[:1]
		}
		if slices.Equal(spec.IPFamilies, a.old.Spec.IPFamilies) && len(spec.IPFamilies) > 1 {
			spec.IPFamilies = spec.IPFamilies[:1]
		}
	} else if a.old != nil {
		if n := len(spec.ClusterIPs); n > 0 && n < len(a.old.Spec.ClusterIPs) {
			invalid(singleToRelease, "cluster IP")
		}
		if n := len(spec.IPFamilies); n > 0 && n < len(a.old.Spec.IPFamilies) {
			invalid(singleToRelease, "IP family")
		}
	}
	if single && len(spec.ClusterIPs) == 2 {
		invalid(notForSecond, "cluster IPs")
	}
	if single && len(spec.IPFamilies) == 2 {
		invalid(notForSecond, "IP families")
	}
	return errs
}

// completeFamilies adds the default family, and the second family of a dual-stack Service. It returns errors if the
// cluster lacks a requested family.
func (a *assignment) completeFamilies() (errs field.ErrorList) {
	spec, path, dual := &a.svc.Spec, field.NewPath("spec"), len(a.ranges) > 1 || a.headlessWithoutSelector()
	if !dual && policyOf(a.svc) == core.IPFamilyPolicyRequireDualStack {
		errs = append(errs, field.Invalid(path.Child("ipFamilyPolicy"), spec.IPFamilyPolicy, noDualStack))
	}
	for i, family := range spec.IPFamilies {
		if !a.has(family) && !a.headlessWithoutSelector() {
			errs = append(errs, field.Invalid(path.Child("ipFamilies").Index(i), family,
				"not configured on this cluster"))
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

// clusterIPs allocates an address for each family of the Service that does not have one yet.
func (a *assignment) clusterIPs() error {
	spec, first := &a.svc.Spec, 0
	if a.old != nil && needsClusterIP(a.old) {
		first = len(a.old.Spec.IPFamilies)
	}
	if isHeadless(a.svc) || a.old != nil && isHeadless(a.old) || first >= len(spec.IPFamilies) {
		return nil
	}
	requested := slices.Clone(spec.ClusterIPs)
	for len(requested) < len(spec.IPFamilies) {
		requested = append(requested, "")
	}
	ips := slices.Clone(requested)
	for i := first; i < len(ips); i++ {
		ip, err := a.takeAddress(i, requested)
		if err != nil {
			return err
		}
		ips[i] = ip
	}
	spec.ClusterIP, spec.ClusterIPs = ips[0], ips
	return nil
}
