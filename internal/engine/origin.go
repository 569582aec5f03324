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

// origin is the webhook of a kind, as long as nothing tells that it may be another one. What it has made is kept under it
// (viewKey), and nobody looks there once the kind has another origin; what was under way then is kept for nobody.
type origin struct {
	kind       schema.GroupResource
	since      int64  // Custom.ConversionSince
	generation uint64 // of its endpoints, Engine.Generation

	// guarded by views.mu
	read   time.Time // when somebody last read what it has made
	broke  time.Time // when a connection to it last broke, if its objects were being read
	tried  time.Time // when it was last asked again
	sure   time.Time // when it was last known to answer as before
	doubt  bool      // something has happened since it was tried
	asking bool      // it is being asked again
}

func kindOf(d *resource.Definition) schema.GroupResource {
	return schema.GroupResource{Group: d.Group, Resource: d.Names.Plural}
}

// origin returns the origin of what the webhook of a kind makes now. again says that the caller is to have it asked again
// (Engine.recheck).
func (v *views) origin(d *resource.Definition, generation uint64, now time.Time, every time.Duration) (o *origin, again bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o = v.origins[kindOf(d)]
	since := d.Custom.ConversionSince
	if o != nil && (o.since > since || o.since == since && o.generation > generation) {
		return o, false // for a request that goes by the CRD, or by the endpoints of the Service, as they were
	}
	if o == nil || o.since < since || o.generation < generation {
		v.drop(func(other *origin) bool { return other == o || now.Sub(other.read) > maxConversionAge })
		o = &origin{kind: kindOf(d), since: since, generation: generation, sure: now}
		o.kind.Group, o.kind.Resource = strings.Clone(o.kind.Group), strings.Clone(o.kind.Resource) // not all of the CRD
		if v.origins == nil {
			v.origins = map[schema.GroupResource]*origin{}
		}
		v.origins[o.kind] = o
	}
	o.read = now
	if !o.asking && (o.doubt || now.Sub(o.sure) >= every) {
		o.asking, again = true, true
	}
	return o, again
}

// drop forgets some origins, and what they have made.
func (v *views) drop(which func(*origin) bool) {
	gone := map[*origin]bool{}
	for kind, o := range v.origins {
		if which(o) {
			gone[o] = true
			delete(v.origins, kind)
		}
	}
	if len(gone) == 0 {
		return
	}
	for e := v.order.Front(); e != nil; {
		next := e.Next()
		if gone[e.Value.(*view).key.origin] {
			v.remove(e)
		}
		e = next
	}
}

// broken notes that a connection to the webhook of some kinds has broken, and returns what is to be asked again: those whose
// objects are being read, or have been read since they were asked last. The others wait for the next read.
func (v *views) broken(which func(*origin) bool, now time.Time, every time.Duration) (ask []*origin) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range v.origins {
		if !which(o) {
			continue
		}
		o.doubt = true
		if !o.read.Before(o.tried) || now.Sub(o.read) < every {
			o.broke = now
			if !o.asking {
				o.asking = true
				ask = append(ask, o)
			}
		}
	}
	return ask
}

// trying notes that an origin is being asked; a break from here on is another doubt.
func (v *views) trying(o *origin, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	o.tried, o.doubt = now, false
}

// tried notes the answer, and says whether to ask once more.
func (v *views) tried(o *origin, got answer, now time.Time, every time.Duration) (again bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch got {
	case another:
		v.drop(func(other *origin) bool { return other == o })
		return false
	case same:
		o.sure = now
	case none:
		o.doubt = true
	}
	o.asking = o.doubt && (now.Sub(o.read) < every || now.Sub(o.broke) < every)
	return o.asking
}

// sample returns some records and what an origin has made of them at a version, those that were read last.
func (v *views) sample(o *origin, at *resource.Version, snap *storage.Snapshot) (recs, made []*storage.Record) {
	want, bytes := viewsAt(at, o), 0
	v.mu.Lock()
	defer v.mu.Unlock()
	for e := v.order.Front(); e != nil && len(recs) < sampleObjects; e = e.Next() {
		known := e.Value.(*view)
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
