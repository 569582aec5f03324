package upstream

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/klog/v2"
)

// WithLogger returns a context in which upstream's controllers log to l. After ctx is done, all records are dropped,
// because upstream's controllers log their normal end as an error. Records about conflicts are always dropped.
func WithLogger(ctx context.Context, l *slog.Logger) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(untilDone{l.Handler(), ctx.Err}))
}

// untilDone is a handler that drops records about conflicts, and all records when done returns an error.
type untilDone struct {
	slog.Handler
	done func() error
}

// Handle implements slog.Handler.
func (h untilDone) Handle(ctx context.Context, r slog.Record) error {
	if h.done() != nil || isConflict(r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// isConflict reports whether the record's error is a conflict. The controllers expect conflicts and retry.
func isConflict(r slog.Record) (is bool) {
	r.Attrs(func(a slog.Attr) bool {
		err, ok := a.Value.Any().(error)
		is = ok && utilerrors.FilterOut(err, apierrors.IsConflict) == nil
		return !is
	})
	return is
}

// WithAttrs implements slog.Handler.
func (h untilDone) WithAttrs(attrs []slog.Attr) slog.Handler {
	return untilDone{h.Handler.WithAttrs(attrs), h.done}
}

// WithGroup implements slog.Handler.
func (h untilDone) WithGroup(name string) slog.Handler {
	return untilDone{h.Handler.WithGroup(name), h.done}
}
