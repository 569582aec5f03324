package agent

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// A pause is longer than the one before by growth, and by up to jitter of it, so that agents do not come all at once.
const backoffFactor, backoffJitter = 1.5, 0.2

// serverAddress is an address that leads to a server, or to one of several.
type serverAddress struct {
	address      string
	known        bool   // the name or a Lease has it now
	fromLease    bool   // a Lease has it: it leads to no other server
	lastServer   string // where it led last; "": nowhere yet
	sessions     int    // sessions by way of it
	loadBalanced bool   // it has led to several servers: it is a load balancer's
	dialing      bool
	redialNow    bool // to be dialled without a pause: it has just led to a server that there was a session to
	lastDial     time.Time
	lastError    string // why it could not be connected to
	backoff
}

// backoff is how long something is left alone.
type backoff struct {
	length time.Duration
	until  time.Time
}

// extend begins the next pause, between first and most.
func (p *backoff) extend(first, most time.Duration) {
	p.length = min(max(time.Duration(float64(p.length)*backoffFactor), first), most)
	p.until = time.Now().Add(wait.Jitter(p.length, backoffJitter))
}
