// Package boottime measures time. On Linux, this includes the time for which the machine was suspended.
package boottime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now returns the time since the machine has started. Unlike Go's monotonic clock, it also counts the time for which
// the machine was suspended.
func Now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // not possible: Linux has this clock since 2.6.39
	}
	return time.Duration(t.Nano())
}
