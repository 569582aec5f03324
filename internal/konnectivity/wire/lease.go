package wire

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// AddressAnnotation is an annotation on a tunnel server's Lease. It lists addresses, as host:port, separated by
// commas. At each of these addresses, agents reach only the server of this Lease.
const AddressAnnotation = "konnectivity.trellis.io/address"

// LeaseValid reports whether a server's Lease is valid at the time now. A Lease is valid for its duration after
// its renewal or, if it was never renewed, after its acquisition. The reference implementation uses the same rule.
func LeaseValid(spec coordinationv1.LeaseSpec, now time.Time) bool {
	renewed := spec.RenewTime
	if renewed == nil {
		renewed = spec.AcquireTime
	}
	if renewed == nil || spec.LeaseDurationSeconds == nil {
		return false
	}
	return renewed.Add(time.Duration(*spec.LeaseDurationSeconds) * time.Second).After(now)
}
