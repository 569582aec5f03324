package main

import (
	"runtime/debug"
	"testing"
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
	if u.returnable() < 64<<20 {
		t.Fatalf("only %d bytes to return", u.returnable())
	}
	debug.FreeOSMemory()
	if u.read(); u.returnable() > worthReturning {
		t.Fatalf("%d bytes are still there", u.returnable())
	}
}
