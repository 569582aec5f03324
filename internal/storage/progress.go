package storage

import "slices"

// progressWait records that a cursor waits for progress up to a revision.
type progressWait struct {
	cursor   *Cursor
	revision int64
}

// Await requests a signal on Ready once Take can return progress up to revision. The signal is sent even if no
// event up to that revision belongs to the prefix.
func (c *Cursor) Await(revision int64) {
	b := c.broadcaster
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.published.Load() >= revision || b.closed {
		signal(c.ready)
		return
	}
	b.progressWaits = append(b.progressWaits, progressWait{c, revision})
}

// signalProgress signals the cursors that wait for progress up to revision. The caller holds mu.
func (b *broadcaster) signalProgress(revision int64) {
	if len(b.progressWaits) == 0 {
		return
	}
	b.progressWaits = slices.DeleteFunc(b.progressWaits, func(w progressWait) bool {
		if w.revision <= revision {
			signal(w.cursor.ready)
		}
		return w.revision <= revision
	})
}
