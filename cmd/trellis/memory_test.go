package main

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// TestUsageCountsGarbage checks that usage counts the garbage after a burst of allocations until it is returned to the
// system.
func TestUsageCountsGarbage(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	u := usage{}
	before := u.read()
	waste := make([][]byte, 64)
	for i := range waste {
		waste[i] = make([]byte, 1<<20)
	}
	if grown := u.read() - before; grown < 64<<20 {
		t.Fatalf("usage has grown by %d bytes, want at least 64 MiB", grown)
	}
	clear(waste)
	if u.releasable() < 64<<20 {
		t.Fatalf("got %d releasable bytes, want at least 64 MiB", u.releasable())
	}
	debug.FreeOSMemory()
	if u.read(); u.releasable() > minReleasable {
		t.Fatalf("got %d releasable bytes after the release, want at most %d", u.releasable(), minReleasable)
	}
}

// TestGCPercentFor checks that a small live heap gets a minimum of space for garbage, and a large one a fixed
// percentage.
func TestGCPercentFor(t *testing.T) {
	for live, want := range map[uint64]int{0: 1000, 8 << 20: 500, 80 << 20: 80, 1 << 30: 80} {
		if got := gcPercentFor(live); got != want {
			t.Errorf("%d bytes live: %d %%, want %d", live, got, want)
		}
	}
}

// TestWatchCollections checks that every garbage collection is reported, not only the first.
func TestWatchCollections(t *testing.T) {
	reported := make(chan bool, 1)
	watchCollections(func() {
		select {
		case reported <- true:
		default:
		}
	})
	for range 3 {
		for noticed := false; !noticed; {
			runtime.GC()
			select {
			case noticed = <-reported:
			case <-time.After(time.Millisecond): // the next collection may not be watched yet
			}
		}
	}
}
