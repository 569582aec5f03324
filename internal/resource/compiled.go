package resource

import (
	"sync"
	"sync/atomic"
	"time"

	ourschema "github.com/trellis-k8s/trellis/internal/schema"
)

// keepSchema is how long a compiled schema is kept at least after it was last asked for. Compiling it again takes a
// millisecond or two; keeping it takes some 100 KiB.
const keepSchema = 5 * time.Minute

// compiledSchema is a schema that is compiled when it is asked for, and let go of when nobody has asked for a while.
type compiledSchema struct {
	raw                   string
	preserveUnknownFields bool

	kept atomic.Pointer[compilation]
	used atomic.Bool // since the last sweep
	mu   sync.Mutex  // one compiles, others wait
}

type compilation struct {
	schema *ourschema.Schema
	err    error
}

// get returns the schema. Whoever has one may use it for as long as they like.
func (c *compiledSchema) get() (*ourschema.Schema, error) {
	if k := c.kept.Load(); k != nil {
		if !c.used.Load() { // written once between two sweeps, so that readers do not take it from each other
			c.used.Store(true)
		}
		return k.schema, k.err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.kept.Load(); k != nil {
		return k.schema, k.err
	}
	s, err := ourschema.Compile(bytesOf(c.raw), c.preserveUnknownFields)
	c.used.Store(true)
	c.kept.Store(&compilation{s, err})
	time.AfterFunc(keepSchema, c.sweep)
	return s, err
}

// sweep lets go of what was not used since the sweep before.
func (c *compiledSchema) sweep() {
	if c.used.Swap(false) {
		time.AfterFunc(keepSchema, c.sweep)
		return
	}
	c.kept.Store(nil)
}
