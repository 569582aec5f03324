package engine

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// A webhook that is mended or replaced need not show it. So it is asked again for a sample of what it has made: while that
// is read, every so often, and at once when a connection breaks. No request waits for it.

const (
	recheckEvery  = 30 * time.Second // unless Engine.RecheckEvery says otherwise
	recheckPause  = time.Second      // from one try to the next
	sampleObjects = 20
	sampleBytes   = 1 << 20 // unless one object alone is larger
)

// answer is what comes of asking again.
type answer int

const (
	none answer = iota
	same
	another
)

// originOf returns the origin of what the webhook of a kind makes now, nil for a kind that has none.
func (e *Engine) originOf(d *resource.Definition, now time.Time) *origin {
	if !conversion.UsesWebhook(d) {
		return nil
	}
	generation := uint64(0)
	if e.Generation != nil {
		generation = e.Generation(d.Custom.Conversion.Webhook)
	}
	o, again := e.views.origin(d, generation, now, e.recheckEvery())
	if again {
		e.tasks.start(func(ctx context.Context) { e.recheck(ctx, o) })
	}
	return o
}

// WebhookDisconnected has the webhook of all CRDs that say so in spec.conversion.webhook asked again: a connection to it has broken.
func (e *Engine) WebhookDisconnected(webhook string) {
	catalog := e.Live.Load()
	which := func(o *origin) bool {
		d := catalog.Definition(o.kind.Group, o.kind.Resource)
		return d != nil && d.Custom != nil && d.Custom.Conversion.Webhook == webhook
	}
	for _, o := range e.views.broken(which, e.clock(), e.recheckEvery()) {
		e.tasks.start(func(ctx context.Context) { e.recheck(ctx, o) })
	}
}

func (e *Engine) recheckEvery() time.Duration {
	if e.RecheckEvery > 0 {
		return e.RecheckEvery
	}
	return recheckEvery
}

// recheck asks an origin again until it has answered, or until nobody reads its objects any longer.
func (e *Engine) recheck(ctx context.Context, o *origin) {
	every := e.recheckEvery()
	for again := true; again; {
		now := e.clock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(o.tried.Add(min(recheckPause, every)).Sub(now)):
		}
		e.views.trying(o, e.clock())
		got := e.ask(ctx, o)
		again = e.views.tried(o, got, e.clock(), every)
	}
}

// ask has a sample of what is kept made anew, in one call for each version.
func (e *Engine) ask(ctx context.Context, o *origin) answer {
	d := e.Live.Load().Definition(o.kind.Group, o.kind.Resource)
	if d == nil || d.Custom == nil || d.Custom.ConversionSince != o.since {
		return another
	}
	for _, v := range d.Versions {
		recs, before := e.views.sample(o, v, e.Store.Head())
		if len(recs) == 0 {
			continue
		}
		now, err := e.reader(v).make(ctx, recs)
		var unreachable *conversion.UnreachableError
		switch {
		case ctx.Err() != nil, errors.As(err, &unreachable):
			return none
		case err != nil:
			return another
		}
		for i := range before {
			if !bytes.Equal(now[i].Value, before[i].Value) {
				return another
			}
		}
	}
	return same
}

// tasks run beside the requests until they are ended. The zero value is ready.
type tasks struct {
	mu      sync.Mutex
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func (t *tasks) context() context.Context {
	if t.ctx == nil {
		t.ctx, t.cancel = context.WithCancel(context.Background())
	}
	return t.ctx
}

func (t *tasks) start(f func(context.Context)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx := t.context(); ctx.Err() == nil {
		t.running.Go(func() { f(ctx) })
	}
}

// end ends all, and returns when they have.
func (t *tasks) end() {
	t.mu.Lock()
	t.context()
	t.cancel()
	t.mu.Unlock()
	t.running.Wait()
}
