package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// gcPercent is the garbage in percent of the live heap at which a collection starts, unless GOGC is set. With
	// 10,000 objects, 80 instead of 100 lowers the peak by 10 MiB and costs a few percent of processor time.
	gcPercent = 80
	// minGarbage is the number of bytes of garbage below which no collection starts. Without it, writes to a small
	// server would cause ten collections a second, which take a sixth of the processor time.
	minGarbage = 40 << 20
)

// paceCollector sets the pace of the garbage collector by gcPercent and minGarbage. It adapts the pace after each
// collection.
func paceCollector() {
	percent := gcPercentFor(liveBytes())
	debug.SetGCPercent(percent)
	watchCollections(func() {
		// SetGCPercent stops the world for a moment, so small changes are ignored.
		if now := gcPercentFor(liveBytes()); now > percent+percent/8 || now < percent-percent/8 {
			percent = now
			debug.SetGCPercent(percent)
		}
	})
}

func gcPercentFor(live uint64) int {
	return int(max(gcPercent, minGarbage*100/max(live, 4<<20)))
}

// watchCollections calls f after each later collection. The calls do not overlap.
func watchCollections(f func()) {
	type sentinel struct{ _ *byte } // the pointer field prevents allocation in a shared block
	runtime.SetFinalizer(&sentinel{}, func(*sentinel) {
		f()
		watchCollections(f)
	})
}

// liveBytes returns the size of the heap after the last collection, in bytes.
func liveBytes() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
