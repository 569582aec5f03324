package storage

import "slices"

// awaited is the wish of a cursor to hear of progress.
type awaited struct {
	cursor   *Cursor
	revision int64
}

// Await lets Ready receive once Take's progress can reach revision, also where none of the
// events up to there belongs to the prefix.
func (c *Cursor) Await(revision int64) {
	h := c.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.published.Load() >= revision || h.closed {
		poke(c.ready)
		return
	}
	h.awaiting = append(h.awaiting, awaited{c, revision})
}

// announce tells those who wait for progress up to revision. The caller holds mu.
func (h *hub) announce(revision int64) {
	if len(h.awaiting) == 0 {
		return
	}
	h.awaiting = slices.DeleteFunc(h.awaiting, func(a awaited) bool {
		if a.revision <= revision {
			poke(a.cursor.ready)
		}
		return a.revision <= revision
	})
}
