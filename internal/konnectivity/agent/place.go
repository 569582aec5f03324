package agent

import (
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// A pause is longer than the one before by growth, and by up to jitter of it, so that agents do not come all at once.
const growth, jitter = 1.5, 0.2

// place is an address that leads to a server, or to one of several.
type place struct {
	address string
	known   bool   // the name or a Lease has it now
	alone   bool   // a Lease has it: it leads to no other server
	server  string // where it led last; "": nowhere yet
	open    int    // sessions by way of it
	several bool   // it has led to several servers: it is a load balancer's
	dialing bool
	again   bool // to be dialled without a pause: it has just led to a server that there was a session to
	tried   time.Time
	trouble string // why it could not be connected to
	pause
}

// pause is how long something is left alone.
type pause struct {
	length time.Duration
	until  time.Time
}

// lengthen begins the next pause, between first and most.
func (p *pause) lengthen(first, most time.Duration) {
	p.length = min(max(time.Duration(float64(p.length)*growth), first), most)
	p.until = time.Now().Add(wait.Jitter(p.length, jitter))
}
