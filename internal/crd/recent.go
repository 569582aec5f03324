package crd

import (
	"bytes"
	"sync"

	"github.com/trellis-k8s/trellis/internal/crd/schema"
)

// Compile compiles the JSON of an openAPIV3Schema, as schema.Parse does. The result is shared with other callers. A
// schema that was compiled recently is not compiled again. Therefore the validation of a CRD also compiles the schemas
// that the first requests for its objects need.
func Compile(openAPIV3Schema []byte, preserveUnknownFields bool) (*Compiled, error) {
	if c := recent.find(openAPIV3Schema, preserveUnknownFields); c != nil {
		return c, nil
	}
	s, err := schema.Parse(openAPIV3Schema, preserveUnknownFields)
	if err != nil {
		return nil, err
	}
	c := newCompiled(s)
	recent.add(c)
	return c, nil
}

var recent recentSchemas

// recentSchemas holds the schemas that were compiled last.
type recentSchemas struct {
	mu   sync.Mutex
	ring [4]*Compiled
	next int
}

func (r *recentSchemas) find(js []byte, preserve bool) *Compiled {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.ring {
		if c != nil && c.Schema.Preserve == preserve && bytes.Equal(c.Schema.JSON, js) {
			return c
		}
	}
	return nil
}

func (r *recentSchemas) add(c *Compiled) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring[r.next] = c
	r.next = (r.next + 1) % len(r.ring)
}
