package etcd

import (
	"time"

	"golang.org/x/sys/unix"
)

// sinceBoot returns the time since the machine has started. Unlike Go's monotonic clock, it also counts the time for
// which the machine was suspended.
func sinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // not possible: Linux has this clock since 2.6.39
	}
	return time.Duration(t.Nano())
}
