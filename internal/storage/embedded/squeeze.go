package embedded

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"time"
)

// squeezer has the engine give back the room of what the history no longer needs. By
// itself it would take its time.
type squeezer struct {
	running  atomic.Bool
	revision int64     // what the history had been shortened to at the last time
	next     time.Time // not before
}

// squeezePause is how many times as long as it took the engine is left in peace after it.
const squeezePause = 4

// squeeze starts that in the background if there is something to give back.
func (l *disk) squeeze() {
	s, e := &l.squeezer, l.engine()
	if e.failure() != nil || !l.space.enough(2*int64(l.memTable)) || !s.running.CompareAndSwap(false, true) {
		return
	}
	revision, began := l.compacted.Load(), l.now()
	if revision <= s.revision || began.Before(s.next) {
		s.running.Store(false)
		return
	}
	s.revision = revision
	l.keeping.Go(func() {
		defer s.running.Store(false)
		if err := e.squeeze(l.life); err != nil && l.life.Err() == nil {
			l.logger.Warn("the store could not be made smaller", "err", err)
		}
		s.next = began.Add((1 + squeezePause) * l.now().Sub(began))
	})
}

// squeeze compacts all files, a piece at a time: each piece needs room of its own until
// it is done.
func (e *engine) squeeze(ctx context.Context) error {
	return e.guarded(func() error {
		flushed, err := e.db.AsyncFlush()
		if err != nil {
			return err
		}
		select {
		case <-flushed:
		case <-ctx.Done():
			return ctx.Err()
		}
		pieces, err := e.pieces()
		if err != nil {
			return err
		}
		for i := 1; i < len(pieces); i++ {
			if err := e.db.Compact(ctx, pieces[i-1], pieces[i], false); err != nil {
				return err
			}
		}
		return nil
	})
}

// pieces parts all keys where the engine's lowest files begin.
func (e *engine) pieces() ([][]byte, error) {
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
