package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/klog/v2"

	"github.com/trellis-k8s/trellis/cluster/internal/node"
)

const (
	// minUptime is the uptime after which a part counts as started. A part cannot lose its Lease earlier, because it
	// tries to renew the Lease for 10 seconds.
	minUptime = 10 * time.Second
	// initialDelay and maxDelay bound the delay before a restart.
	initialDelay = time.Second
	maxDelay     = 30 * time.Second
)

// part is a child process of `trellis-cluster up`. It runs this program with other arguments. Parts are separate
// processes, because upstream's code can start only once per process, and because the exit of one part must not end
// the others.
type part struct {
	name     string
	args     []string
	confined bool // runs in separate user and mount namespaces
}

// supervise runs a part until ctx ends, and restarts it whenever it exits. The delay before a restart grows if the
// part exits within minUptime. If the first process of the part exits within minUptime and no signal has killed it,
// its flags are probably invalid. Then supervise returns the error and does not restart the part.
func (p part) supervise(ctx context.Context) error {
	delay := initialDelay
	for first := true; ; first = false {
		start := time.Now()
		err := node.Spawn(ctx, os.Stderr, p.confined, p.args...)
		uptime := time.Since(start)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = errors.New("exited unexpectedly with exit code 0")
		}
		if first && uptime < minUptime && !node.Killed(err) {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if uptime >= minUptime {
			delay = initialDelay
		}
		klog.FromContext(ctx).Error(err, "Part exited, restarting it", "part", p.name, "delay", delay)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return nil
		}
		delay = min(2*delay, maxDelay)
	}
}
