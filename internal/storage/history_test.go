package storage

import (
	"runtime"
	"testing"
	"weak"
)

// TestDropFrontReleases checks that dropped events become garbage even while the number of retained events
// stays the same.
func TestDropFrontReleases(t *testing.T) {
	s := make([]*Event, 0, 1000)
	for range 100 {
		s = append(s, &Event{})
	}
	first := weak.Make(s[0])
	var dropped droppedCount
	for range 101 {
		s = dropFront(append(s, &Event{}), 1, &dropped)
	}
	runtime.GC()
	if first.Value() != nil {
		t.Error("the first event is still reachable")
	}
	runtime.KeepAlive(s)
}
