//go:build !linux

package etcd

import "time"

var started = time.Now()

// sinceBoot returns the time since the process has started.
func sinceBoot() time.Duration { return time.Since(started) }
