package resource

import (
	"sync"
	"sync/atomic"
	"time"
	"weak"

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
	c.sweepLater()
	return s, err
}

// sweepLater has c swept, unless it goes before with the kind it belongs to.
func (c *compiledSchema) sweepLater() {
	w := weak.Make(c)
	time.AfterFunc(keepSchema, func() {
		if c := w.Value(); c != nil {
			c.sweep()
		}
	})
}

// sweep lets go of what was not used since the sweep before.
func (c *compiledSchema) sweep() {
	if c.used.Swap(false) {
		c.sweepLater()
		return
	}
	c.kept.Store(nil)
}
