package kinds

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

// DefaultServiceCIDR is the name of the ServiceCIDR that the server makes of Config.ServiceRanges.
const DefaultServiceCIDR = "kubernetes"

// takeAddress takes the one that is asked for of the family i of a Service, or with "" any that is free.
func (a *assignment) takeAddress(i int, asked []string) (string, error) {
	snap, ip := a.head(), asked[i]
	ranges := a.readyRanges(snap, a.svc.Spec.IPFamilies[i])
	if ip == "" {
		for _, r := range ranges {
			size := usableAddresses(r)
			free := func(n int) bool { return snap.Get(addressPrefix+nthAddress(r, n).String()) != nil }
			if n, ok := pickFree(size, clamp(size/16, 16, 256), free); ok {
				return nthAddress(r, n).String(), nil
			}
		}
		return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", a.svc.Name, errFull))
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
	return "", a.invalid(field.Invalid(field.NewPath("spec", "clusterIPs"), asked, fmt.Sprintf("failed to allocate IP %v: %v", ip, problem)))
}

// readyRanges are those of a family that addresses may be taken from: of the ServiceCIDRs that are ready and are not going.
// The server's own count as long as it has not made its ServiceCIDR of them.
func (p pool) readyRanges(snap *storage.Snapshot, family core.IPFamily) (all []netip.Prefix) {
	if snap.Get(rangePrefix+DefaultServiceCIDR) == nil {
		all = slices.Clone(p.ranges)
	}
	for rec := range snap.Walk(rangePrefix, "") {
		var c networkingv1.ServiceCIDR
		if err := json.Unmarshal(rec.Value, &c); err != nil || c.DeletionTimestamp != nil {
			continue
		}
		if ready := apimeta.FindStatusCondition(c.Status.Conditions, networkingv1.ServiceCIDRConditionReady); ready != nil && ready.Status != metav1.ConditionTrue {
			continue
		}
		for _, text := range c.Spec.CIDRs {
			if r, err := netip.ParsePrefix(text); err == nil && (r.Addr().Is4() || r.Bits() >= 64) { // as upstream's allocators
				all = append(all, r)
			}
		}
	}
	return slices.DeleteFunc(all, func(r netip.Prefix) bool { return familyOf(r.Addr().String()) != family })
}

// usableAddresses is how many addresses of a range are given to Services: all but the first, which is the network's, and of IPv4 the last.
func usableAddresses(r netip.Prefix) int {
	n := 1<<min(r.Addr().BitLen()-r.Bits(), 62) - 1
	if r.Addr().Is4() {
		n--
	}
	return max(n, 0)
}

// nthAddress is one of them, counted from 0.
func nthAddress(r netip.Prefix, n int) netip.Addr {
	ip := r.Masked().Addr().As16()
	binary.BigEndian.PutUint64(ip[8:], binary.BigEndian.Uint64(ip[8:])+uint64(n)+1)
	return netip.AddrFrom16(ip).Unmap()
}
