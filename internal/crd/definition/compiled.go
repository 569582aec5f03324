package definition

import (
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/trellis-k8s/trellis/internal/crd"
)

// schemaRetention is the minimum time for which an unused compiled schema is retained. Compilation takes one to two
// milliseconds. A compiled schema uses about 100 KiB of memory.
const schemaRetention = 5 * time.Minute

// compiledSchema is a schema that is compiled on first use and evicted if it is not used for some time.
type compiledSchema struct {
	raw                   string
	preserveUnknownFields bool

	compiled atomic.Pointer[compilation]
	used     atomic.Bool // used since the last call of evictIfUnused
	mu       sync.Mutex  // held during compilation
}

type compilation struct {
	schema *crd.Compiled
	err    error
}

// get returns the schema. The caller may retain the schema after its eviction.
func (c *compiledSchema) get() (*crd.Compiled, error) {
	if k := c.compiled.Load(); k != nil {
		if !c.used.Load() { // the check avoids repeated writes, for which processors would contend
			c.used.Store(true)
		}
		return k.schema, k.err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.compiled.Load(); k != nil {
		return k.schema, k.err
	}
	s, err := crd.Compile(bytesOf(c.raw), c.preserveUnknownFields)
	c.used.Store(true)
	c.compiled.Store(&compilation{s, err})
	c.scheduleEviction()
	return s, err
}

// scheduleEviction schedules evictIfUnused. The timer does not keep c alive if its kind is removed earlier.
func (c *compiledSchema) scheduleEviction() {
	w := weak.Make(c)
	time.AfterFunc(schemaRetention, func() {
		if c := w.Value(); c != nil {
			c.evictIfUnused()
		}
	})
}

// evictIfUnused evicts the schema if it has not been used since the previous call.
func (c *compiledSchema) evictIfUnused() {
	if c.used.Swap(false) {
		c.scheduleEviction()
		return
	}
	c.compiled.Store(nil)
}
