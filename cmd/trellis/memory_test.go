package main

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// What lies about after a burst is seen, and is gone once it has been returned.
func TestUsageSeesGarbage(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	u := usage{}
	before := u.read()
	waste := make([][]byte, 64)
	for i := range waste {
		waste[i] = make([]byte, 1<<20)
	}
	if grown := u.read() - before; grown < 64<<20 {
		t.Fatalf("64 MiB were allocated, %d seen", grown)
	}
	clear(waste)
	if u.releasable() < 64<<20 {
		t.Fatalf("only %d bytes to return", u.releasable())
	}
	debug.FreeOSMemory()
	if u.read(); u.releasable() > minReleasable {
		t.Fatalf("%d bytes are still there", u.releasable())
	}
}

// However little lives, there is room for garbage; where much does, the share counts.
func TestGCPercentFor(t *testing.T) {
	for live, want := range map[uint64]int{0: 1000, 8 << 20: 500, 80 << 20: 80, 1 << 30: 80} {
		if got := gcPercentFor(live); got != want {
			t.Errorf("%d bytes live: %d %%, want %d", live, got, want)
		}
	}
}

// Each collection is noticed, not only the first.
func TestWatchCollections(t *testing.T) {
	seen := make(chan bool, 1)
	watchCollections(func() {
		select {
		case seen <- true:
		default:
		}
	})
	for range 3 {
		for noticed := false; !noticed; {
			runtime.GC()
			select {
			case noticed = <-seen:
			case <-time.After(time.Millisecond): // it may not have been watched again yet
			}
		}
	}
}
