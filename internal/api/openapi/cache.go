package openapi

import (
	"sync"
	"weak"
)

// cache keeps the texts of documents: those last asked for up to a number of bytes, the
// others only while somebody still writes them to a client.
type cache struct {
	budget int

	mu    sync.Mutex
	clock uint64
	used  int
	texts map[*slot]*text // those that are kept
}

// text is the body of a document.
type text struct {
	body []byte
	used uint64
}

// slot is the place of one text. Whoever finds it empty fills it; others wait.
type slot struct {
	mu   sync.Mutex
	last weak.Pointer[text]
}

func newCache(budget int) *cache { return &cache{budget: budget, texts: map[*slot]*text{}} }

// get returns the text of s, by build if it is not at hand.
func (c *cache) get(s *slot, build func() ([]byte, error)) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.last.Value()
	if t == nil {
		body, err := build()
		if err != nil {
			return nil, err
		}
		t = &text{body: body}
		s.last = weak.Make(t)
	}
	c.keep(s, t)
	return t.body, nil
}

// keep makes t the one used last, and lets go of the ones not used for longest.
func (c *cache) keep(s *slot, t *text) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	t.used = c.clock
	if c.texts[s] == nil && len(t.body) <= c.budget {
		c.texts[s] = t
		c.used += len(t.body)
	}
	for c.used > c.budget {
		var oldest *slot
		for s, t := range c.texts {
			if oldest == nil || t.used < c.texts[oldest].used {
				oldest = s
			}
		}
		c.drop(oldest)
	}
}

// forget lets go of a text that is no longer served.
func (c *cache) forget(s *slot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(s)
}

func (c *cache) drop(s *slot) {
	if t := c.texts[s]; t != nil {
		c.used -= len(t.body)
		delete(c.texts, s)
	}
}
