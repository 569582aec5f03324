package main

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// TestUsageCountsGarbage checks that usage counts garbage after a burst of allocations, until the memory is returned
// to the system.
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

// TestGCPercentFor checks that the space for garbage is a minimum for a small live heap, and a fixed percentage for a
// large live heap.
func TestGCPercentFor(t *testing.T) {
	for live, want := range map[uint64]int{0: 1000, 8 << 20: 500, 80 << 20: 80, 1 << 30: 80} {
		if got := gcPercentFor(live); got != want {
			t.Errorf("%d bytes live: %d %%, want %d", live, got, want)
		}
	}
}

// TestWatchCollections checks that watchCollections calls its function after every garbage collection, not only after
// the first one.
func TestWatchCollections(t *testing.T) {
	calls := make(chan bool, 1)
	watchCollections(func() {
		select {
		case calls <- true:
		default:
		}
	})
	const want = 3
	deadline := time.After(30 * time.Second)
	for got := range want {
		for called := false; !called; {
			runtime.GC()
			select {
			case called = <-calls:
			case <-time.After(time.Millisecond): // the next sentinel may not exist yet
			case <-deadline:
				t.Fatalf("the function was called %d times in 30 seconds, want %d", got, want)
			}
		}
	}
}
