package storage

import (
	"runtime"
	"testing"
	"weak"
)

// What has been forgotten is let go of, also while ever the same number of events is kept.
func TestForgetLetsGo(t *testing.T) {
	s := make([]*Event, 0, 1000)
	for range 100 {
		s = append(s, &Event{})
	}
	first := weak.Make(s[0])
	var dropped spare
	for range 101 {
		s = forget(append(s, &Event{}), 1, &dropped)
	}
	runtime.GC()
	if first.Value() != nil {
		t.Error("the first event is still there")
	}
	runtime.KeepAlive(s)
}
