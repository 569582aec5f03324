package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Config is what an Engine is made of.
type Config struct {
	Store storage.Store // who has opened it closes it, after the Engine
	// Kinds returns the built-in kinds, which may ask Live what is served.
	Kinds func(*resource.Live) []*resource.Definition
	// IgnoreSelectableFields has all CRDs read as if they had none.
	IgnoreSelectableFields bool
	Now                    func() time.Time // nil: the system's clock
	// Webhook converts the objects of kinds that have one; nil: they cannot be converted.
	Webhook conversion.Webhook
	// Generation is that of the endpoints of a webhook, by the JSON of spec.conversion.webhook; nil: nobody knows. What was
	// converted at an earlier one is not kept.
	Generation func(webhook string) uint64
	// RecheckEvery is how often a webhook is asked again for a sample of what is kept of its conversions, while that is
	// read; 0 means 30 seconds.
	RecheckEvery time.Duration
	// Admission are the plugins that writes pass, after admission.Lifecycle.
	Admission admission.Plugins
	// Failed is told when the Engine can no longer follow the CRDs of the store; nil: nobody is.
	Failed func(error)
}

// Open returns an Engine that knows every kind that is stored, and follows them until Close. ctx bounds no more than the call.
func Open(ctx context.Context, c Config) (*Engine, error) {
	e := &Engine{Config: c, Live: resource.NewLive(c.Store, c.Kinds), upToCommit: func(w *write) error { return w.attempt(commitStage) }}
	if c.IgnoreSelectableFields {
		e.Live.IgnoreSelectableFields()
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	e.tasks.start(func(following context.Context) { e.followCatalog(following, giveUp) })
	if _, err := e.Live.Current(ctx); err != nil {
		e.Close()
		return nil, fmt.Errorf("read the definitions of kinds: %w", context.Cause(ctx))
	}
	return e, nil
}

// followCatalog keeps the catalog up with the store.
func (e *Engine) followCatalog(ctx context.Context, failed context.CancelCauseFunc) {
	err := e.Live.Follow(ctx)
	if ctx.Err() != nil {
		return // as it should
	}
	err = fmt.Errorf("follow the definitions of kinds: %w", err)
	failed(err)
	if e.Failed != nil {
		e.Failed(err)
	}
}

// Close ends what runs beside the requests.
func (e *Engine) Close() { e.tasks.end() }
