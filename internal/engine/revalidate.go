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

// The server is not notified when a conversion webhook changes its behavior, for example after a new version of the
// webhook is deployed. Therefore it checks the cached conversions: it converts a sample again and compares the
// results. It does so periodically while the conversions are read, and immediately when a connection to the webhook
// breaks. No request waits for a check.

const (
	defaultRevalidateInterval = 30 * time.Second // if Config.RevalidateInterval is 0
	revalidatePause           = time.Second      // minimum time between two checks
	sampleObjects             = 20
	sampleBytes               = 1 << 20 // unless a single object is larger
)

// checkResult is the result of converting a sample again.
type checkResult int

const (
	checkFailed checkResult = iota // the webhook could not be reached
	checkUnchanged
	checkChanged // at least one conversion differs or has failed
)

// epochOf returns the current epoch of a kind's conversion webhook, or nil if the kind has no webhook. It starts a
// check if one is due.
func (e *Engine) epochOf(d *resource.Definition, now time.Time) *conversionEpoch {
	if !conversion.UsesWebhook(d) {
		return nil
	}
	generation := uint64(0)
	if e.Generation != nil {
		generation = e.Generation(d.Custom.Conversion.Webhook)
	}
	epoch, check := e.conversions.epoch(d, generation, now, e.revalidateInterval())
	if check {
		e.tasks.start(func(ctx context.Context) { e.revalidate(ctx, epoch) })
	}
	return epoch
}

// WebhookDisconnected reports that a connection to a webhook has broken. It starts a check of all kinds that use
// the webhook. The parameter is the JSON of spec.conversion.webhook.
func (e *Engine) WebhookDisconnected(webhook string) {
	catalog := e.Live.Load()
	matches := func(epoch *conversionEpoch) bool {
		d := catalog.Definition(epoch.kind.Group, epoch.kind.Resource)
		return d != nil && d.Custom != nil && d.Custom.Conversion.Webhook == webhook
	}
	for _, epoch := range e.conversions.connectionLost(matches, e.clock(), e.revalidateInterval()) {
		e.tasks.start(func(ctx context.Context) { e.revalidate(ctx, epoch) })
	}
}

func (e *Engine) revalidateInterval() time.Duration {
	if e.RevalidateInterval > 0 {
		return e.RevalidateInterval
	}
	return defaultRevalidateInterval
}

// revalidate checks an epoch. It repeats the check until the webhook has responded, or until the kind is no longer
// read.
func (e *Engine) revalidate(ctx context.Context, epoch *conversionEpoch) {
	interval := e.revalidateInterval()
	for again := true; again; {
		now := e.clock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(epoch.lastChecked.Add(min(revalidatePause, interval)).Sub(now)):
		}
		e.conversions.beginCheck(epoch, e.clock())
		result := e.compareSample(ctx, epoch)
		again = e.conversions.endCheck(epoch, result, e.clock(), interval)
	}
}

// compareSample converts a sample of the cached conversions again and compares the results. It makes one call of
// the webhook per version.
func (e *Engine) compareSample(ctx context.Context, epoch *conversionEpoch) checkResult {
	d := e.Live.Load().Definition(epoch.kind.Group, epoch.kind.Resource)
	if d == nil || d.Custom == nil || d.Custom.ConversionSince != epoch.since {
		return checkChanged
	}
	for _, v := range d.Versions {
		recs, before := e.conversions.sample(epoch, v, e.Store.Head())
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

// tasks is a group of background goroutines with a common context. The zero value is ready to use.
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

// start runs f in a new goroutine, unless end has been called.
func (t *tasks) start(f func(context.Context)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ctx := t.context(); ctx.Err() == nil {
		t.running.Go(func() { f(ctx) })
	}
}

// end cancels all goroutines and waits until they have ended.
func (t *tasks) end() {
	t.mu.Lock()
	t.context()
	t.cancel()
	t.mu.Unlock()
	t.running.Wait()
}
