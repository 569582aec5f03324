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
	// minUptime is how long a part has lived that has all it needs. Sooner none can have lost its Lease, which it renews for that long.
	minUptime    = 10 * time.Second
	initialDelay = time.Second
	maxDelay  = 30 * time.Second
)

// part is one of those that up runs: this program once more, so that the end of one is nobody else's. Upstream's begin once in a process.
type part struct {
	name     string
	args     []string
	confined bool // to namespaces of its own
}

// supervise runs a part until ctx ends, and begins it again whenever it has ended, with pauses that grow if that is soon. What ends right at
// its first start, and was not killed, has something wrong with its flags: its error is returned.
func (p part) supervise(ctx context.Context) error {
	pause := initialDelay
	for first := true; ; first = false {
		began := time.Now()
		err := node.Spawn(ctx, os.Stderr, p.confined, p.args...)
		lived := time.Since(began)
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = errors.New("it was not asked to end")
		}
		if first && lived < minUptime && !node.Killed(err) {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if lived >= minUptime {
			pause = initialDelay
		}
		klog.FromContext(ctx).Error(err, "A part has ended, and begins again", "part", p.name, "pause", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		pause = min(2*pause, maxDelay)
	}
}
