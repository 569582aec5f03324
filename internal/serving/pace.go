package serving

import (
	"runtime"
	"time"
)

const (
	// paceCalls is the number of reads, or of writes, after which the time is read.
	paceCalls = 4
	// A connection that has been busy for paceTime yields. It is busy while paceCalls take less than that.
	paceTime = 2 * time.Millisecond
)

// pace is the rate of one connection's reads or of its writes. It is not safe for concurrent use.
type pace struct {
	calls uint
	last  time.Time // when the time was read last
	since time.Time // when the connection became busy, or yielded last
}

// yield lets all other goroutines run first if the connection is busy. A client that sends small frames without a pause would otherwise
// keep a processor for 10 ms at a time, after which Go preempts a goroutine.
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
