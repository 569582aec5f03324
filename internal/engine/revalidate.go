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
	defaultRevalidateInterval  = 30 * time.Second // unless Engine.RecheckEvery says otherwise
	revalidatePause  = time.Second      // from one try to the next
	sampleObjects = 20
	sampleBytes   = 1 << 20 // unless one object alone is larger
)

// checkResult is what comes of asking again.
type checkResult int

const (
	checkFailed checkResult = iota
	checkUnchanged
	checkChanged
)

// epochOf returns the origin of what the webhook of a kind makes now, nil for a kind that has none.
func (e *Engine) epochOf(d *resource.Definition, now time.Time) *conversionEpoch {
	if !conversion.UsesWebhook(d) {
		return nil
	}
	generation := uint64(0)
	if e.Generation != nil {
		generation = e.Generation(d.Custom.Conversion.Webhook)
	}
	o, again := e.conversions.epoch(d, generation, now, e.revalidateInterval())
	if again {
		e.tasks.start(func(ctx context.Context) { e.revalidate(ctx, o) })
	}
	return o
}

// WebhookDisconnected has the webhook of all CRDs that say so in spec.conversion.webhook asked again: a connection to it has broken.
func (e *Engine) WebhookDisconnected(webhook string) {
	catalog := e.Live.Load()
	which := func(o *conversionEpoch) bool {
		d := catalog.Definition(o.kind.Group, o.kind.Resource)
		return d != nil && d.Custom != nil && d.Custom.Conversion.Webhook == webhook
	}
	for _, o := range e.conversions.connectionLost(which, e.clock(), e.revalidateInterval()) {
		e.tasks.start(func(ctx context.Context) { e.revalidate(ctx, o) })
	}
}

func (e *Engine) revalidateInterval() time.Duration {
	if e.RecheckEvery > 0 {
		return e.RecheckEvery
	}
	return defaultRevalidateInterval
}

// revalidate asks an origin again until it has answered, or until nobody reads its objects any longer.
func (e *Engine) revalidate(ctx context.Context, o *conversionEpoch) {
	every := e.revalidateInterval()
	for again := true; again; {
		now := e.clock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(o.lastChecked.Add(min(revalidatePause, every)).Sub(now)):
		}
		e.conversions.beginCheck(o, e.clock())
		got := e.compareSample(ctx, o)
		again = e.conversions.endCheck(o, got, e.clock(), every)
	}
}

// compareSample has a sample of what is kept made anew, in one call for each version.
func (e *Engine) compareSample(ctx context.Context, o *conversionEpoch) checkResult {
	d := e.Live.Load().Definition(o.kind.Group, o.kind.Resource)
	if d == nil || d.Custom == nil || d.Custom.ConversionSince != o.since {
		return checkChanged
	}
	for _, v := range d.Versions {
		recs, before := e.conversions.sample(o, v, e.Store.Head())
		if len(recs) == 0 {
			continue
		}
		now, err := e.readerAt(v).convertAll(ctx, recs)
		var unreachable *conversion.UnreachableError
		switch {
		case ctx.Err() != nil, errors.As(err, &unreachable):
			return checkFailed
		case err != nil:
			return checkChanged
		}
		for i := range before {
			if !bytes.Equal(now[i].Value, before[i].Value) {
				return checkChanged
			}
		}
	}
	return checkUnchanged
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
