package record

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// The server is not notified when a conversion webhook changes its behavior, for example after a new version of the
// webhook is deployed. Therefore it checks the cached conversions: it converts a sample again and compares the
// results. It does so periodically while the conversions are read, and immediately when a connection to the webhook
// breaks. No request waits for a check.

const (
	revalidatePause = time.Second // minimum time between two checks
	sampleObjects   = 20
	sampleBytes     = 1 << 20 // unless a single object is larger
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
func (s *Views) epochOf(d *resource.Definition, now time.Time) *conversionEpoch {
	if !conversion.UsesWebhook(d) {
		return nil
	}
	generation := uint64(0)
	if s.Generation != nil {
		generation = s.Generation(d.Custom.Conversion.Webhook)
	}
	epoch, check := s.cache.epoch(d, generation, now, s.RevalidateInterval)
	if check {
		s.Go(func(ctx context.Context) { s.revalidate(ctx, epoch) })
	}
	return epoch
}

// WebhookDisconnected reports that a connection to a webhook has broken. It starts a check of all kinds that use
// the webhook. The parameter is the JSON of spec.conversion.webhook.
func (s *Views) WebhookDisconnected(webhook string) {
	catalog := s.Live.Load()
	matches := func(epoch *conversionEpoch) bool {
		d := catalog.Definition(epoch.kind.Group, epoch.kind.Resource)
		return d != nil && d.Conversion().Webhook == webhook
	}
	for _, epoch := range s.cache.connectionLost(matches, s.Now(), s.RevalidateInterval) {
		s.Go(func(ctx context.Context) { s.revalidate(ctx, epoch) })
	}
}

// revalidate checks an epoch. It repeats the check until the webhook has responded, or until the kind is no longer
// read.
func (s *Views) revalidate(ctx context.Context, epoch *conversionEpoch) {
	interval := s.RevalidateInterval
	for again := true; again; {
		now := s.Now()
		select {
		case <-ctx.Done():
			return
		case <-time.After(epoch.lastChecked.Add(min(revalidatePause, interval)).Sub(now)):
		}
		s.cache.beginCheck(epoch, s.Now())
		result := s.compareSample(ctx, epoch)
		again = s.cache.endCheck(epoch, result, s.Now(), interval)
	}
}

// compareSample converts a sample of the cached conversions again and compares the results. It makes one call of
// the webhook per version.
func (s *Views) compareSample(ctx context.Context, epoch *conversionEpoch) checkResult {
	d := s.Live.Load().Definition(epoch.kind.Group, epoch.kind.Resource)
	if d == nil || !conversion.UsesWebhook(d) || d.Custom.ConversionSince != epoch.since {
		return checkChanged
	}
	for _, v := range d.Versions {
		recs, before := s.cache.sample(epoch, v, s.Store.Head())
		if len(recs) == 0 {
			continue
		}
		now, err := s.At(v).ConvertAll(ctx, recs)
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
