package engine

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// maxConversionAge is how long a conversion by a webhook is kept at most.
const maxConversionAge = 10 * time.Minute

// conversionEpoch is the webhook of a kind, as long as nothing tells that it may be another one. What it has made is kept under it
// (viewKey), and nobody looks there once the kind has another origin; what was under way then is kept for nobody.
type conversionEpoch struct {
	kind       schema.GroupResource
	since      int64  // Custom.ConversionSince
	generation uint64 // of its endpoints, Engine.Generation

	// guarded by views.mu
	lastRead   time.Time // when somebody last read what it has made
	lastDisconnect  time.Time // when a connection to it last broke, if its objects were being read
	lastChecked  time.Time // when it was last asked again
	lastConfirmed   time.Time // when it was last known to answer as before
	doubtful  bool      // something has happened since it was tried
	checking bool      // it is being asked again
}

func kindOf(d *resource.Definition) schema.GroupResource {
	return schema.GroupResource{Group: d.Group, Resource: d.Names.Plural}
}

// epoch returns the origin of what the webhook of a kind makes now. again says that the caller is to have it asked again
// (Engine.recheck).
func (v *conversionCache) epoch(d *resource.Definition, generation uint64, now time.Time, every time.Duration) (o *conversionEpoch, again bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o = v.epochs[kindOf(d)]
	since := d.Custom.ConversionSince
	if o != nil && (o.since > since || o.since == since && o.generation > generation) {
		return o, false // for a request that goes by the CRD, or by the endpoints of the Service, as they were
	}
	if o == nil || o.since < since || o.generation < generation {
		v.dropEpochs(func(other *conversionEpoch) bool { return other == o || now.Sub(other.lastRead) > maxConversionAge })
		o = &conversionEpoch{kind: kindOf(d), since: since, generation: generation, lastConfirmed: now}
		o.kind.Group, o.kind.Resource = strings.Clone(o.kind.Group), strings.Clone(o.kind.Resource) // not all of the CRD
		if v.epochs == nil {
			v.epochs = map[schema.GroupResource]*conversionEpoch{}
		}
		v.epochs[o.kind] = o
	}
	o.lastRead = now
	if !o.checking && (o.doubtful || now.Sub(o.lastConfirmed) >= every) {
		o.checking, again = true, true
	}
	return o, again
}

// dropEpochs forgets some origins, and what they have made.
func (v *conversionCache) dropEpochs(which func(*conversionEpoch) bool) {
	gone := map[*conversionEpoch]bool{}
	for kind, o := range v.epochs {
		if which(o) {
			gone[o] = true
			delete(v.epochs, kind)
		}
	}
	if len(gone) == 0 {
		return
	}
	for e := v.order.Front(); e != nil; {
		next := e.Next()
		if gone[e.Value.(*cachedConversion).key.epoch] {
			v.remove(e)
		}
		e = next
	}
}

// connectionLost notes that a connection to the webhook of some kinds has broken, and returns what is to be asked again: those whose
// objects are being read, or have been read since they were asked last. The others wait for the next read.
func (v *conversionCache) connectionLost(which func(*conversionEpoch) bool, now time.Time, every time.Duration) (ask []*conversionEpoch) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range v.epochs {
		if !which(o) {
			continue
		}
		o.doubtful = true
		if !o.lastRead.Before(o.lastChecked) || now.Sub(o.lastRead) < every {
			o.lastDisconnect = now
			if !o.checking {
				o.checking = true
				ask = append(ask, o)
			}
		}
	}
	return ask
}

// beginCheck notes that an origin is being asked; a break from here on is another doubt.
func (v *conversionCache) beginCheck(o *conversionEpoch, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o.lastChecked, o.doubtful = now, false
}

// endCheck notes the answer, and says whether to ask once more.
func (v *conversionCache) endCheck(o *conversionEpoch, got checkResult, now time.Time, every time.Duration) (again bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch got {
	case checkChanged:
		v.dropEpochs(func(other *conversionEpoch) bool { return other == o })
		return false
	case checkUnchanged:
		o.lastConfirmed = now
	case checkFailed:
		o.doubtful = true
	}
	o.checking = o.doubtful && (now.Sub(o.lastRead) < every || now.Sub(o.lastDisconnect) < every)
	return o.checking
}

// sample returns some records and what an origin has made of them at a version, those that were read last.
func (v *conversionCache) sample(o *conversionEpoch, at *resource.Version, snap *storage.Snapshot) (recs, made []*storage.Record) {
	want, bytes := conversionKeyAt(at, o), 0
	v.mu.Lock()
	defer v.mu.Unlock()
	for e := v.order.Front(); e != nil && len(recs) < sampleObjects; e = e.Next() {
		known := e.Value.(*cachedConversion)
		want.key, want.revision = known.key.key, known.key.revision
		if known.key != want || known.record == nil {
			continue
		}
		rec := snap.Get(known.key.key)
		if rec == nil || rec.Modified != known.key.revision || packed(rec).HasAPIVersion(at.APIVersion) {
			continue // of the past, or not by the webhook
		}
		if bytes += len(rec.Value); bytes > sampleBytes && len(recs) > 0 {
			break
		}
		recs, made = append(recs, rec), append(made, known.record)
	}
	return recs, made
}
