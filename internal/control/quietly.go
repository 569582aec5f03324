package control

import (
	"context"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/klog/v2"
)

// quietly gives controllers of upstream's, which tell of their beginning and end, a log of what goes wrong until ctx is done.
func quietly(ctx context.Context) context.Context {
	return klog.NewContext(ctx, logr.New(errorsOnly{klog.NewKlogr().GetSink(), ctx.Err})) // a sink of its own, for New writes to it
}

type errorsOnly struct {
	logr.LogSink
	ended func() error
}

// Error implements logr.LogSink.
func (s errorsOnly) Error(err error, message string, pairs ...any) {
	conflict := err != nil && utilerrors.FilterOut(err, apierrors.IsConflict) == nil // which each of them expects: it tries again
	if s.ended() == nil && !conflict {
		s.LogSink.Error(err, message, pairs...)
	}
}

// Enabled implements logr.LogSink.
func (errorsOnly) Enabled(int) bool { return false }

// WithValues implements logr.LogSink.
func (s errorsOnly) WithValues(pairs ...any) logr.LogSink {
	return errorsOnly{s.LogSink.WithValues(pairs...), s.ended}
}

// WithName implements logr.LogSink.
func (s errorsOnly) WithName(name string) logr.LogSink {
	return errorsOnly{s.LogSink.WithName(name), s.ended}
}
