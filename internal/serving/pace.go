package serving

import (
	"runtime"
	"time"
)

const (
	// paceCalls is the number of reads or writes between two readings of the clock.
	paceCalls = 4
	// A connection is busy while paceCalls reads or writes take less than paceTime. After it has been busy for
	// paceTime, it yields.
	paceTime = 2 * time.Millisecond
)

// pace measures the rate of a connection's reads or writes. It is not safe for concurrent use.
type pace struct {
	calls uint
	last  time.Time // the last reading of the clock
	since time.Time // time at which the connection became busy or last yielded
}

// yield lets other goroutines run first if the connection is busy. A client that sends small frames without a pause
// would otherwise occupy a processor for 10 ms at a time, until Go preempts the goroutine.
func (p *pace) yield() {
	if p.calls++; p.calls%paceCalls != 0 {
		return
	}
	now := time.Now()
	idle := now.Sub(p.last) >= paceTime
	p.last = now
	switch {
	case idle:
		p.since = now
	case now.Sub(p.since) >= paceTime:
		p.since = now
		runtime.Gosched()
	}
}
