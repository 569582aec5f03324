package embedded

import (
	"bytes"
	"context"
	"slices"
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
	if e.failure() != nil || !l.space.hasFree(2*int64(l.memTable)) || !s.running.CompareAndSwap(false, true) {
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
		if err := e.compactFiles(l.lifetime); err != nil && l.lifetime.Err() == nil {
			l.logger.Warn("cannot free disk space by compacting the engine's files", "err", err)
		}
		s.next = began.Add((1 + compactionPauseFactor) * l.now().Sub(began))
	})
}

// compactFiles compacts all files in pieces. Each piece needs additional disk space until it is complete.
func (e *engine) compactFiles(ctx context.Context) error {
	return e.runDetached(func() error {
		flushed, err := e.db.AsyncFlush()
		if err != nil {
			return err
		}
		select {
		case <-flushed:
		case <-ctx.Done():
			return ctx.Err()
		}
		bounds, err := e.compactionBounds()
		if err != nil {
			return err
		}
		for i := 1; i < len(bounds); i++ {
			if err := e.db.Compact(ctx, bounds[i-1], bounds[i], false); err != nil {
				return err
			}
		}
		return nil
	})
}

// compactionBounds returns keys that split the key space where the files of the lowest level begin.
func (e *engine) compactionBounds() ([][]byte, error) {
	levels, err := e.db.SSTables()
	if err != nil {
		return nil, err
	}
	var bounds [][]byte
	for i := len(levels) - 1; i >= 0 && bounds == nil; i-- {
		for _, table := range levels[i] {
			bounds = append(bounds, table.Smallest.UserKey)
		}
	}
	bounds = append(bounds, []byte{0}, []byte{0xff})
	slices.SortFunc(bounds, bytes.Compare)
	return slices.CompactFunc(bounds, bytes.Equal), nil
}
