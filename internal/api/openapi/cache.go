package openapi

import (
	"sync"
	"weak"
)

// cache holds the texts of documents. It retains the most recently used texts, up to budget bytes in total. It
// refers to all other texts by weak pointers, so that they stay in memory only while a response uses them.
type cache struct {
	budget int

	mu    sync.Mutex
	clock uint64
	used  int
	texts map[*textSlot]*text // retained texts
}

// text is the body of a document.
type text struct {
	body []byte
	used uint64
}

// textSlot identifies one text in the cache. The first caller that finds the slot empty builds the text. Concurrent
// callers wait for the text.
type textSlot struct {
	mu   sync.Mutex
	last weak.Pointer[text]
}

func newCache(budget int) *cache { return &cache{budget: budget, texts: map[*textSlot]*text{}} }

// get returns the text of s. It calls build if the text is not in memory.
func (c *cache) get(s *textSlot, build func() ([]byte, error)) ([]byte, error) {
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
	c.touch(s, t)
	return t.body, nil
}

// touch makes t the most recently used text, and evicts the least recently used ones if the cache is too large.
func (c *cache) touch(s *textSlot, t *text) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clock++
	t.used = c.clock
	if c.texts[s] == nil && len(t.body) <= c.budget {
		c.texts[s] = t
		c.used += len(t.body)
	}
	for c.used > c.budget {
		var oldest *textSlot
		for s, t := range c.texts {
			if oldest == nil || t.used < c.texts[oldest].used {
				oldest = s
			}
		}
		c.evict(oldest)
	}
}

// remove removes a text that is no longer served.
func (c *cache) remove(s *textSlot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.evict(s)
}

func (c *cache) evict(s *textSlot) {
	if t := c.texts[s]; t != nil {
		c.used -= len(t.body)
		delete(c.texts, s)
	}
}
