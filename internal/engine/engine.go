// Package engine implements the Kubernetes verbs for any resource.Definition on top of a storage.Store. Callers
// pass decoded objects, and results hold encoded bytes. The package does not use HTTP, and must not import packages
// that do, such as internal/api.
//
// The packages below it are, from the lowest to the highest: trace and verb (arguments and errors of verbs), record
// (stored records at any version), scales, read (get, list and watch), strategy (rules of kinds) and write.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/write"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Engine implements the verbs: those of read.Reader and of write.Writer. Open creates it.
type Engine struct {
	*write.Writer
}

// Config holds the dependencies and settings of an Engine.
type Config struct {
	Store storage.Store // the caller closes it, after the Engine
	// Kinds returns the built-in kinds. They may use its argument to look up the served kinds.
	Kinds func(*catalog.Live) []*resource.Definition
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
	// Failed is called if the Engine can no longer follow the CRDs in the store, unless the store has failed. It may be
	// nil.
	Failed func(error)
}

// defaultRevalidateInterval is used if Config.RevalidateInterval is 0.
const defaultRevalidateInterval = 30 * time.Second

// Open returns an Engine that serves every kind in the store and follows changes of CRDs until Close is called. ctx
// limits only the call of Open.
func Open(ctx context.Context, c Config) (*Engine, error) {
	views := record.New(record.Config{
		Store:              c.Store,
		Live:               catalog.NewLive(c.Store, c.Kinds),
		Now:                c.Now,
		Webhook:            c.Webhook,
		Generation:         c.Generation,
		RevalidateInterval: cmp.Or(c.RevalidateInterval, defaultRevalidateInterval),
	})
	if views.Now == nil {
		views.Now = time.Now
	}
	e := &Engine{write.New(&read.Reader{Views: views}, c.Admission)}
	if c.IgnoreSelectableFields {
		e.Live.IgnoreSelectableFields()
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	views.Go(func(followCtx context.Context) {
		err := e.Live.Follow(followCtx)
		if followCtx.Err() != nil {
			return // Close was called
		}
		err = fmt.Errorf("cannot follow resource definitions: %w", err)
		cancel(err)
		if c.Failed != nil && !errors.Is(err, storage.ErrFailed) {
			c.Failed(err)
		}
	})
	if _, err := e.Live.Current(ctx); err != nil {
		e.Close()
		return nil, fmt.Errorf("cannot read resource definitions: %w", context.Cause(ctx))
	}
	return e, nil
}
