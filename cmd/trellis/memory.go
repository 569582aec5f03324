package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// quietFor is how long little is allocated before memory is given back.
	quietFor = 5 * time.Second
	// quietBytes is what a server allocates in quietFor that does nothing but watch itself.
	quietBytes = 4 << 20
	// worthReturning is what makes a collection worth its price.
	worthReturning = 8 << 20
)

// giveMemoryBack returns what a burst of work has left behind to the system once the burst is over, until
// ctx ends. Go's own collector would keep most of it for as long as nothing is allocated.
func giveMemoryBack(ctx context.Context) {
	ticker := time.NewTicker(quietFor)
	defer ticker.Stop()
	u := usage{}
	for {
		before := u.read()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if u.read()-before < quietBytes && u.returnable() > worthReturning {
			debug.FreeOSMemory()
		}
	}
}

// usage are samples of the heap, in bytes: all that was ever allocated, what lies there, what of it lived at the
// last collection, and what is free but not returned.
type usage [4]metrics.Sample

// read takes the samples and returns the first.
func (u *usage) read() uint64 {
	for i, name := range []string{"/gc/heap/allocs:bytes", "/memory/classes/heap/objects:bytes", "/gc/heap/live:bytes", "/memory/classes/heap/free:bytes"} {
		u[i].Name = name
	}
	metrics.Read(u[:])
	return u[0].Value.Uint64()
}

func (u *usage) returnable() uint64 {
	lies, lived := u[1].Value.Uint64(), u[2].Value.Uint64()
	return max(lies, lived) - lived + u[3].Value.Uint64()
}
