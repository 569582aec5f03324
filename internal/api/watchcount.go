package api

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// gatherShare is what a watch waits in a burst for each watch of the same kind: about
	// twice what sending to one of them costs, so that a burst never takes all of a processor.
	gatherShare = 20 * time.Microsecond
	// gatherLimit bounds the wait, however many watches there are.
	gatherLimit = 10 * time.Millisecond
)

// watchCounts counts the watches of each kind.
type watchCounts struct {
	mu    sync.Mutex
	sizes map[*resource.Definition]*atomic.Int64
}

// add counts a watch in. size is kept true until leave is called.
func (c *watchCounts) add(d *resource.Definition) (size *atomic.Int64, leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sizes == nil {
		c.sizes = map[*resource.Definition]*atomic.Int64{}
	}
	if c.sizes[d] == nil {
		c.sizes[d] = new(atomic.Int64)
	}
	size = c.sizes[d]
	size.Add(1)
	return size, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if size.Add(-1) == 0 {
			delete(c.sizes, d)
		}
	}
}

// patience is how long after its last write a watch waits for more events before the next:
// nothing for the only watch of a kind, more where the same event goes to many.
func patience(size int64) time.Duration {
	return min(time.Duration(size-1)*gatherShare, gatherLimit)
}
