package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// gcPercent is how much garbage may lie beside what lives, unless GOGC says otherwise. Most of what
	// lives are the objects themselves: with 10,000 of them 80 instead of 100 takes some 10 MiB off the peak,
	// for a few percent of processor time.
	gcPercent = 80
	// gcRoom is how many bytes of garbage may lie in any case. A small server that is written to would
	// otherwise collect ten times a second, for a sixth of all that it does.
	gcRoom = 40 << 20
)

// paceCollector makes the collector run as gcPercent and gcRoom say. It looks at each collection's result.
func paceCollector() {
	percent := gcPercentFor(liveBytes())
	debug.SetGCPercent(percent)
	watchCollections(func() {
		// Setting it stops the world for a moment, so small changes are let be.
		if now := gcPercentFor(liveBytes()); now > percent+percent/8 || now < percent-percent/8 {
			percent = now
			debug.SetGCPercent(percent)
		}
	})
}

func gcPercentFor(live uint64) int {
	return int(max(gcPercent, gcRoom*100/max(live, 4<<20)))
}

// watchCollections calls f after each collection from now on, one call at a time.
func watchCollections(f func()) {
	type sentinel struct{ _ *byte } // a pointer keeps it out of blocks shared with others
	runtime.SetFinalizer(&sentinel{}, func(*sentinel) {
		f()
		watchCollections(f)
	})
}

// liveBytes is what the last collection left.
func liveBytes() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
