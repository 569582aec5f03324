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

// Config holds the dependencies and settings of an Engine.
type Config struct {
	Store storage.Store // the caller closes it, after the Engine
	// Kinds returns the built-in kinds. They may use its argument to look up the served kinds.
	Kinds func(*resource.Live) []*resource.Definition
	// IgnoreSelectableFields ignores spec.versions[*].selectableFields of all CRDs.
	IgnoreSelectableFields bool
	Now                    func() time.Time // nil means the system clock
	// Webhook converts the objects of kinds with a conversion webhook. nil means that these objects cannot be
	// converted.
	Webhook conversion.Webhook
	// Generation returns a number that changes when the endpoints of a conversion webhook change. The argument is
	// the JSON of spec.conversion.webhook. Conversions of an earlier generation are not cached. nil means that
	// endpoints are not tracked.
	Generation func(webhook string) uint64
	// RevalidateInterval is the interval between checks of the cached conversions of a webhook. A check converts a
	// sample again and compares the results. It runs only while the objects are being read. 0 means 30 seconds.
	RevalidateInterval time.Duration
	// Admission holds the admission plugins for writes. They run after admission.Lifecycle.
	Admission admission.Plugins
	// Failed is called if the Engine can no longer follow the CRDs in the store. It may be nil.
	Failed func(error)
}

// Open returns an Engine that serves every kind in the store and follows changes of CRDs until Close is called. ctx
// limits only the call of Open.
func Open(ctx context.Context, c Config) (*Engine, error) {
	e := &Engine{
		Config:     c,
		Live:       resource.NewLive(c.Store, c.Kinds),
		upToCommit: func(w *write) error { return w.attempt(commitStage) },
	}
	if c.IgnoreSelectableFields {
		e.Live.IgnoreSelectableFields()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e.tasks.start(func(taskCtx context.Context) { e.followCatalog(taskCtx, cancel) })
	if _, err := e.Live.Current(ctx); err != nil {
		e.Close()
		return nil, fmt.Errorf("cannot read resource definitions: %w", context.Cause(ctx))
	}
	return e, nil
}

// followCatalog updates the catalog with changes in the store until ctx ends.
func (e *Engine) followCatalog(ctx context.Context, failed context.CancelCauseFunc) {
	err := e.Live.Follow(ctx)
	if ctx.Err() != nil {
		return // Close was called
	}
	err = fmt.Errorf("cannot follow resource definitions: %w", err)
	failed(err)
	if e.Failed != nil {
		e.Failed(err)
	}
}

// Close stops the background tasks and waits until they have ended.
func (e *Engine) Close() { e.tasks.end() }
