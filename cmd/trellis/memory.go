package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// idleInterval is the time with few allocations after which memory is released.
	idleInterval = 5 * time.Second
	// idleBytes is the maximum number of bytes that an idle server allocates in idleInterval.
	idleBytes = 4 << 20
	// minReleasable is the minimum number of releasable bytes for a garbage collection.
	minReleasable = 8 << 20
)

// releaseMemory releases unused memory to the system after each burst of work, until ctx is done. Go's collector would
// keep most of it until the next allocations.
func releaseMemory(ctx context.Context) {
	ticker := time.NewTicker(idleInterval)
	defer ticker.Stop()
	u := usage{}
	for {
		before := u.read()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if u.read()-before < idleBytes && u.releasable() > minReleasable {
			debug.FreeOSMemory()
		}
	}
}

// usage holds samples of the heap in bytes: all allocations so far, the current objects, the live objects at the last
// collection, and the free memory that is not released.
type usage [4]metrics.Sample

// read updates the samples and returns the first one.
func (u *usage) read() uint64 {
	for i, name := range []string{
		"/gc/heap/allocs:bytes", "/memory/classes/heap/objects:bytes", "/gc/heap/live:bytes",
		"/memory/classes/heap/free:bytes",
	} {
		u[i].Name = name
	}
	metrics.Read(u[:])
	return u[0].Value.Uint64()
}

// releasable returns the number of bytes that a collection could release.
func (u *usage) releasable() uint64 {
	objects, live := u[1].Value.Uint64(), u[2].Value.Uint64()
	return max(objects, live) - live + u[3].Value.Uint64()
}
