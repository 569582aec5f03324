package record

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// maxConversionAge is the maximum time that a conversion by a webhook is cached.
const maxConversionAge = 10 * time.Minute

// conversionEpoch is a period in which the webhook of a kind is assumed to return the same results for the same
// objects. The keys of cached conversions contain the epoch (conversionKey). When a new epoch starts, the cached
// conversions of the old epoch are dropped. Conversions that are running at that moment are not cached.
type conversionEpoch struct {
	kind       schema.GroupResource
	since      int64  // Custom.ConversionSince
	generation uint64 // of the webhook's endpoints, from Config.Generation

	// Guarded by conversionCache.mu.
	lastRead       time.Time // when the kind's conversions were last read
	lastDisconnect time.Time // when a connection to the webhook last broke while the kind was being read
	lastChecked    time.Time // when the last check started
	lastConfirmed  time.Time // end of the last check that found the conversions unchanged
	doubtful       bool      // a connection broke after the start of the last check, or the last check failed
	checking       bool      // a check is running or scheduled
}

func kindOf(d *resource.Definition) schema.GroupResource {
	return schema.GroupResource{Group: d.Group, Resource: d.Names.Plural}
}

// epoch returns the current epoch of a kind. It starts a new one if the CRD or the webhook's endpoints have
// changed. If check is true, the caller must start a check (Engine.revalidate).
func (v *conversionCache) epoch(
	d *resource.Definition, generation uint64, now time.Time, interval time.Duration,
) (e *conversionEpoch, check bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	e = v.epochs[kindOf(d)]
	since := d.Custom.ConversionSince
	if e != nil && (e.since > since || e.since == since && e.generation > generation) {
		return e, false // the request still uses an older CRD or older endpoints of the webhook's Service
	}
	if e == nil || e.since < since || e.generation < generation {
		v.dropEpochs(func(other *conversionEpoch) bool {
			return other == e || now.Sub(other.lastRead) > maxConversionAge
		})
		e = &conversionEpoch{kind: kindOf(d), since: since, generation: generation, lastConfirmed: now}
		// The strings are cloned because a substring would keep the whole CRD in memory.
		e.kind.Group, e.kind.Resource = strings.Clone(e.kind.Group), strings.Clone(e.kind.Resource)
		if v.epochs == nil {
			v.epochs = map[schema.GroupResource]*conversionEpoch{}
		}
		v.epochs[e.kind] = e
	}
	e.lastRead = now
	if !e.checking && (e.doubtful || now.Sub(e.lastConfirmed) >= interval) {
		e.checking, check = true, true
	}
	return e, check
}

// dropEpochs drops the epochs for which the function drop returns true, and their cached conversions.
func (v *conversionCache) dropEpochs(drop func(*conversionEpoch) bool) {
	dropped := map[*conversionEpoch]bool{}
	for kind, e := range v.epochs {
		if drop(e) {
			dropped[e] = true
			delete(v.epochs, kind)
		}
	}
	if len(dropped) == 0 {
		return
	}
	for entry := v.order.Front(); entry != nil; {
		next := entry.Next()
		if dropped[entry.Value.(*cachedConversion).key.epoch] {
			v.remove(entry)
		}
		entry = next
	}
}

// connectionLost records that a connection to the webhook of the matching epochs has broken. It returns the epochs
// to check immediately. These are the epochs that have been read recently, or since their last check. The remaining
// epochs are checked at their next read.
func (v *conversionCache) connectionLost(
	matches func(*conversionEpoch) bool, now time.Time, interval time.Duration,
) (check []*conversionEpoch) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range v.epochs {
		if !matches(e) {
			continue
		}
		e.doubtful = true
		if !e.lastRead.Before(e.lastChecked) || now.Sub(e.lastRead) < interval {
			e.lastDisconnect = now
			if !e.checking {
				e.checking = true
				check = append(check, e)
			}
		}
	}
	return check
}

// beginCheck records the start of a check. If a connection breaks after that, e becomes doubtful again.
func (v *conversionCache) beginCheck(e *conversionEpoch, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	e.lastChecked, e.doubtful = now, false
}

// endCheck records the result of a check and reports whether another check is needed.
func (v *conversionCache) endCheck(
	e *conversionEpoch, result checkResult, now time.Time, interval time.Duration,
) (again bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch result {
	case checkChanged:
		v.dropEpochs(func(other *conversionEpoch) bool { return other == e })
		return false
	case checkUnchanged:
		e.lastConfirmed = now
	case checkFailed:
		e.doubtful = true
	}
	e.checking = e.doubtful && (now.Sub(e.lastRead) < interval || now.Sub(e.lastDisconnect) < interval)
	return e.checking
}

// sample returns the most recently used conversions of an epoch to a version: the stored records and the converted
// records. sampleObjects and sampleBytes limit the size of the sample.
func (v *conversionCache) sample(
	epoch *conversionEpoch, at *resource.Version, snap *storage.Snapshot,
) (recs, converted []*storage.Record) {
	want, bytes := conversionKeyAt(at, epoch), 0
	v.mu.Lock()
	defer v.mu.Unlock()
	for e := v.order.Front(); e != nil && len(recs) < sampleObjects; e = e.Next() {
		cached := e.Value.(*cachedConversion)
		want.key, want.revision = cached.key.key, cached.key.revision
		if cached.key != want || cached.record == nil {
			continue
		}
		rec := snap.Get(cached.key.key)
		if rec == nil || rec.Modified != cached.key.revision || Packed(rec).HasAPIVersion(at.APIVersion) {
			continue // an older revision, or an object that needs no conversion
		}
		if bytes += len(rec.Value); bytes > sampleBytes && len(recs) > 0 {
			break
		}
		recs, converted = append(recs, rec), append(converted, cached.record)
	}
	return recs, converted
}
