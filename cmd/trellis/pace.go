package main

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// gcPercent is the value of GOGC if that variable is not set: the garbage in percent of the live heap at which a
	// collection starts. With 10,000 objects, 80 instead of 100 lowers the peak memory by 10 MiB and costs a few
	// percent of processor time.
	gcPercent = 80
	// minGarbage is the minimum number of bytes of garbage at which a collection starts. If it were zero, writes to a
	// small server would cause ten collections a second. These would take a sixth of the processor time.
	minGarbage = 40 << 20
)

// paceCollector configures when garbage collections start, from gcPercent and minGarbage. It updates this after each
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

// watchCollections calls the function f after each garbage collection from now on. The calls do not overlap.
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
