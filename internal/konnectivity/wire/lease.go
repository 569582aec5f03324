package wire

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// AddressAnnotation of a server's Lease says where agents reach that server and no other: host:port, several with commas between them.
const AddressAnnotation = "konnectivity.trellis.io/address"

// LeaseValid says whether a server's Lease has been renewed, or else acquired, less than its duration before now, as the reference counts it.
func LeaseValid(l coordinationv1.LeaseSpec, now time.Time) bool {
	renewed := l.RenewTime
	if renewed == nil {
		renewed = l.AcquireTime
	}
	return renewed != nil && l.LeaseDurationSeconds != nil && renewed.Add(time.Duration(*l.LeaseDurationSeconds)*time.Second).After(now)
}
