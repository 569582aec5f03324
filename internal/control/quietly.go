package control

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// Quietly has loops of upstream's, which tell of their end as of something that went wrong, log by l until ctx is done.
func Quietly(ctx context.Context, l *slog.Logger) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(untilDone{l.Handler(), ctx.Err}))
}

type untilDone struct {
	slog.Handler
	done func() error
}

// Handle implements slog.Handler.
func (h untilDone) Handle(ctx context.Context, r slog.Record) error {
	if h.done() != nil {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h untilDone) WithAttrs(attrs []slog.Attr) slog.Handler {
	return untilDone{h.Handler.WithAttrs(attrs), h.done}
}

// WithGroup implements slog.Handler.
func (h untilDone) WithGroup(name string) slog.Handler {
	return untilDone{h.Handler.WithGroup(name), h.done}
}
