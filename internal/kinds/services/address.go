package services

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/api/servicecidr"
	"k8s.io/kubernetes/pkg/apis/core"

	"github.com/trellis-k8s/trellis/internal/storage"
)

const rangePrefix = "/registry/servicecidrs/"

// DefaultCIDR is the name of the ServiceCIDR that the server creates from the configured ranges.
const DefaultCIDR = "kubernetes"

// takeAddress returns an address for the family i of a Service. If requested[i] is "", it returns any free address.
// Otherwise it returns requested[i], or an error if this address is not available.
func (a *assignment) takeAddress(i int, requested []string) (string, error) {
	snap, ip := a.head(), requested[i]
	ranges := a.readyRanges(snap, a.svc.Spec.IPFamilies[i])
	if ip == "" {
		for _, r := range ranges {
			size := usableAddresses(r)
			taken := func(n int) bool { return snap.Get(addressPrefix+nthAddress(r, n).String()) != nil }
			if n, ok := pickFree(size, clamp(size/16, 16, 256), taken); ok {
				return nthAddress(r, n).String(), nil
			}
		}
		return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w",
			a.svc.Name, errFull))
	}
	addr, problem := parseIP(ip), error(nil)
	switch {
	case !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return servicecidr.PrefixContainsIP(r, addr) }):
		problem = errOutside
	case snap.Get(addressPrefix+addr.String()) != nil:
		problem = errTakenIP
	default:
		return ip, nil
	}
	return "", a.invalid(field.Invalid(field.NewPath("spec", "clusterIPs"), requested,
		fmt.Sprintf("failed to allocate IP %v: %v", ip, problem)))
}

// readyRanges returns the ranges from which addresses of a family may be allocated. They belong to ServiceCIDRs that
// are ready and not being deleted. Until DefaultCIDR exists, the configured ranges are included.
func (p Pool) readyRanges(snap *storage.Snapshot, family core.IPFamily) (all []netip.Prefix) {
	if snap.Get(rangePrefix+DefaultCIDR) == nil {
		all = slices.Clone(p.ranges)
	}
	for rec := range snap.Walk(rangePrefix, "") {
		var c networkingv1.ServiceCIDR
		if err := json.Unmarshal(rec.Value, &c); err != nil || c.DeletionTimestamp != nil {
			continue
		}
		ready := apimeta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady)
		if ready != nil && ready.Status != metav1.ConditionTrue {
			continue
		}
		for _, text := range c.Spec.CIDRs {
			// as in upstream, other ranges are ignored
			if r, err := netip.ParsePrefix(text); err == nil && (r.Addr().Is4() || r.Bits() >= 64) {
				all = append(all, r)
			}
		}
	}
	return slices.DeleteFunc(all, func(r netip.Prefix) bool { return familyOf(r.Addr().String()) != family })
}

// usableAddresses returns the number of addresses of a range that can be allocated. These are all addresses except
// the first one, which is the network address, and the last one of an IPv4 range.
func usableAddresses(r netip.Prefix) int {
	n := 1<<min(r.Addr().BitLen()-r.Bits(), 62) - 1
	if r.Addr().Is4() {
		n--
	}
	return max(n, 0)
}

// nthAddress returns the usable address number n of a range, counted from 0.
func nthAddress(r netip.Prefix, n int) netip.Addr {
	ip := r.Masked().Addr().As16()
	binary.BigEndian.PutUint64(ip[8:], binary.BigEndian.Uint64(ip[8:])+uint64(n)+1)
	return netip.AddrFrom16(ip).Unmap()
}
