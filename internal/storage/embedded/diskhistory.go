package embedded

import (
	"context"
	"errors"

	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded/engine"
)

// useHistory runs work, which reads or compacts the history.
func (l *disk) useHistory(work func(*engine.Engine) error) error {
	e := l.engine()
	err := e.Read("the history", func() error { return work(e) })
	if e.Failure() != nil {
		return l.unavailableError(e)
	}
	if damage := (*engine.DamageError)(nil); errors.As(err, &damage) {
		l.Logger.Error("cannot read the history", "err", err)
	}
	return err
}

// Replay implements storage.HistoryReader.
func (l *disk) Replay(_ context.Context, prefix string, after, until int64) (events []*storage.Event, reached int64,
	err error) {
	reached = after
	err = l.useHistory(func(e *engine.Engine) (err error) {
		events, reached, err = e.Replay(prefix, after, until)
		return err
	})
	return events, reached, err
}

// ReadAt implements storage.HistoryReader.
func (l *disk) ReadAt(
	_ context.Context, target int64, base *storage.Snapshot, put func(string, *storage.Record),
) error {
	return l.useHistory(func(e *engine.Engine) error { return e.ReadAt(target, base.Revision(), put) })
}

// Compact implements log.
func (l *disk) Compact(revision int64) error {
	if err := l.useHistory(func(e *engine.Engine) error { return e.Compact(revision) }); err != nil {
		return err
	}
	l.compacted.Store(revision)
	if err := l.writeHead(); err != nil {
		l.Logger.Warn("cannot record the newest revision in the file HEAD", "err", err)
	}
	return nil
}
