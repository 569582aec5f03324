package embedded

import (
	"sync/atomic"
	"time"
)

// fileCompactor compacts Pebble's files after the history has been compacted, to free disk space. Pebble would
// eventually do so without it.
type fileCompactor struct {
	running  atomic.Bool
	revision int64     // last compacted revision of the history at the start of the last run
	next     time.Time // earliest time of the next run
}

// compactionPauseFactor is the length of the pause after a run, as a multiple of the run's duration.
const compactionPauseFactor = 4

// compactFiles starts a run in the background if the history has been compacted since the last run.
func (l *disk) compactFiles() {
	s, e := &l.fileCompactor, l.engine()
	if e.Failure() != nil || !l.space.hasFree(2*int64(l.MemTable)) || !s.running.CompareAndSwap(false, true) {
		return
	}
	revision, began := l.compacted.Load(), l.now()
	if revision <= s.revision || began.Before(s.next) {
		s.running.Store(false)
		return
	}
	s.revision = revision
	l.background.Go(func() {
		defer s.running.Store(false)
		if err := e.CompactFiles(l.lifetime); err != nil && l.lifetime.Err() == nil {
			l.Logger.Warn("cannot free disk space by compacting the engine's files", "err", err)
		}
		s.next = began.Add((1 + compactionPauseFactor) * l.now().Sub(began))
	})
}
