package engine

import (
	"bytes"
	"context"
	"slices"
)

// CompactFiles compacts all files in pieces. Each piece needs additional disk space until it is complete.
func (e *Engine) CompactFiles(ctx context.Context) error {
	return e.runDetached(func() error {
		flushed, err := e.DB.AsyncFlush()
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
			if err := e.DB.Compact(ctx, bounds[i-1], bounds[i], false); err != nil {
				return err
			}
		}
		return nil
	})
}

// compactionBounds returns keys that split the key space where the files of the lowest level begin.
func (e *Engine) compactionBounds() ([][]byte, error) {
	levels, err := e.DB.SSTables()
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
