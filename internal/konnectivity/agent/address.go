package agent

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Each backoff is backoffFactor times as long as the previous one. A random part of up to backoffJitter is added,
// so that agents do not reconnect all at once.
const backoffFactor, backoffJitter = 1.5, 0.2

// serverAddress is an address of a server, or of a load balancer in front of several servers.
type serverAddress struct {
	address      string
	known        bool   // the DNS name or a Lease lists the address
	fromLease    bool   // a Lease lists the address, which therefore leads to a single server
	lastServer   string // ID of the server that the last session reached; "" means none yet
	sessions     int    // number of sessions through this address
	loadBalanced bool   // the address has led to several servers
	dialing      bool
	redialNow    bool // redial without backoff, because the last dial reached a server that already had a session
	lastDial     time.Time
	lastError    string // why the last dial failed
	backoff
}

// backoff is a waiting time between attempts.
type backoff struct {
	length time.Duration
	until  time.Time
}

// extend starts the next backoff, with a length between first and longest.
func (b *backoff) extend(first, longest time.Duration) {
	b.length = min(max(time.Duration(float64(b.length)*backoffFactor), first), longest)
	b.until = time.Now().Add(wait.Jitter(b.length, backoffJitter))
}
