package metrics

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/trellis-k8s/trellis/internal/resource"
)

const (
	// delayPerWatch is multiplied by the number of watches of the same kind. The product is the delay of each watch
	// in a burst. delayPerWatch is about twice the cost of sending to one watch, so that a burst never uses a whole
	// processor.
	delayPerWatch = 20 * time.Microsecond
	// maxBurstDelay is the maximum delay.
	maxBurstDelay = 10 * time.Millisecond
)

// watchCounts counts the watches of each kind.
type watchCounts struct {
	mu    sync.Mutex
	sizes map[*resource.Definition]*atomic.Int64
}

// Add counts a watch of the kind d and returns the counter of all watches of d. The caller calls remove when the
// watch ends.
func (c *watchCounts) Add(d *resource.Definition) (size *atomic.Int64, remove func()) {
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

// BurstDelay returns the minimum time between two writes of a watch, given the number of watches of its kind. It
// is 0 for a single watch, and grows with the number of watches that receive the same event.
func BurstDelay(size int64) time.Duration {
	return min(time.Duration(size-1)*delayPerWatch, maxBurstDelay)
}
