package embedded

import (
	"context"
	"errors"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// useHistory runs work, which reads or compacts the history.
func (l *disk) useHistory(work func(*engine) error) error {
	e := l.engine()
	err := e.read("the history", func() error { return work(e) })
	if e.failure() != nil {
		return l.unavailableError(e)
	}
	if damage := (*DamageError)(nil); errors.As(err, &damage) {
		l.logger.Error("cannot read the history", "err", err)
	}
	return err
}

// Replay implements storage.HistoryReader.
func (l *disk) Replay(_ context.Context, prefix string, after, until int64) (events []*storage.Event, reached int64,
	err error) {
	reached = after
	err = l.useHistory(func(e *engine) (err error) {
		events, reached, err = e.replay(prefix, after, until)
		return err
	})
	return events, reached, err
}

// ReadAt implements storage.HistoryReader.
func (l *disk) ReadAt(
	_ context.Context, target int64, base *storage.Snapshot, put func(string, *storage.Record),
) error {
	return l.useHistory(func(e *engine) error { return e.readAt(target, base.Revision(), put) })
}

// Compact implements log.
func (l *disk) Compact(revision int64) error {
	if err := l.useHistory(func(e *engine) error { return e.compact(revision) }); err != nil {
		return err
	}
	l.compacted.Store(revision)
	if err := l.writeHead(); err != nil {
		l.logger.Warn("cannot record the newest revision in the file HEAD", "err", err)
	}
	return nil
}
