//go:build !linux

package boottime

import "time"

var started = time.Now()

// Now returns the time since the process has started.
func Now() time.Duration { return time.Since(started) }
