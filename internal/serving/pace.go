package serving

import (
	"runtime"
	"time"
)

const (
	// A connection with paceCalls reads, or writes, within paceTime is busy: it yields.
	paceCalls = 4
	paceTime  = 2 * time.Millisecond
)

// pace is the rate of one connection's reads or of its writes. It is not safe for concurrent use.
type pace struct {
	calls uint
	since time.Time // of the last paceCalls
}

// yield lets all other goroutines run first if the connection is busy. A client that sends small frames without a pause would otherwise
// keep a processor for 10 ms at a time, after which Go preempts a goroutine.
func (p *pace) yield() {
	if p.calls++; p.calls%paceCalls != 0 {
		return
	}
	now := time.Now()
	busy := now.Sub(p.since) < paceTime
	p.since = now
	if busy {
		runtime.Gosched()
	}
}
