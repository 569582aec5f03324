package wire

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// AddressAnnotation is an annotation on a tunnel server's Lease. It lists the addresses at which agents reach
// that server and no other, as host:port, separated by commas.
const AddressAnnotation = "konnectivity.trellis.io/address"

// LeaseValid reports whether a server's Lease has not expired at now. The Lease expires its duration after its
// renewal or, if it was never renewed, its acquisition. The reference uses the same rule.
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
