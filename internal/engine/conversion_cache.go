package engine

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// maxConversionBytes bounds what views keeps.
const maxConversionBytes = 64 << 20

// conversionCache keeps objects as they look at versions they were not stored at, the least
// recently used ones going first. A view is a record: what it would be had the object been stored like that, so that
// all that is derived from records (labels, selectable fields) is derived from views alike. Each is made once, however
// many want it at the same time. The zero value is ready.
type conversionCache struct {
	mu      sync.Mutex
	byKey   map[conversionKey]*list.Element
	order   list.List // of *view, the most recently used first
	bytes   int
	epochs map[schema.GroupResource]*conversionEpoch // of the kinds whose objects a webhook converts
}

// conversionKey names a view.
type conversionKey struct {
	key        string // in the store
	revision   int64
	apiVersion string
	specHash       uint64  // of the CRD: a write of its status or labels changes no view
	epoch     *conversionEpoch // nil where no webhook has a say
}

// conversionKeyAt is the key of views at a version, but for the object.
func conversionKeyAt(v *resource.Version, from *conversionEpoch) conversionKey {
	key := conversionKey{apiVersion: v.APIVersion, epoch: from}
	if c := v.Definition.Custom; c != nil {
		key.specHash = c.SpecHash()
	}
	return key
}

var errPanicked = errors.New("a panic while an object was converted")

// cachedConversion is one entry, in the map from the moment that somebody makes it.
type cachedConversion struct {
	key    conversionKey
	started  time.Time
	done   chan struct{} // closed when record or err is there
	record *storage.Record
	err    error
	abandoned   bool // who was to make it gave up: whoever waits may try
}

// convertFunc makes the views of some records at a version, all or none.
type convertFunc func(ctx context.Context, recs []*storage.Record) ([]*storage.Record, error)

// get returns the views of recs with a key but for the object, in their order. Those that are missing are made in one go.
func (v *conversionCache) get(ctx context.Context, key conversionKey, now time.Time, recs []*storage.Record, make convertFunc) ([]*storage.Record, error) {
	for {
		entries, mine := v.claim(key, now, recs)
		if len(mine) > 0 {
			v.fill(ctx, make, recs, entries, mine)
		}
		out, again, err := collect(ctx, entries)
		if !again {
			return out, err
		}
	}
}

// claim finds the entries of recs, and lists those that the caller is to make.
func (v *conversionCache) claim(key conversionKey, now time.Time, recs []*storage.Record) (entries []*cachedConversion, mine []int) {
	entries = make([]*cachedConversion, len(recs))
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.byKey == nil {
		v.byKey = map[conversionKey]*list.Element{}
	}
	for i, rec := range recs {
		key.key, key.revision = rec.Key, rec.Modified
		if e := v.byKey[key]; e != nil {
			if known := e.Value.(*cachedConversion); key.epoch == nil || now.Sub(known.started) < maxConversionAge {
				v.order.MoveToFront(e)
				entries[i] = known
				continue
			}
			v.remove(e)
		}
		entries[i] = &cachedConversion{key: key, started: now, done: make(chan struct{})}
		v.byKey[key] = v.order.PushFront(entries[i])
		mine = append(mine, i)
	}
	return entries, mine
}

// fill makes the entries that are mine. Failures are not kept.
func (v *conversionCache) fill(ctx context.Context, maker convertFunc, recs []*storage.Record, entries []*cachedConversion, mine []int) {
	wanted := make([]*storage.Record, len(mine))
	for i, at := range mine {
		wanted[i] = recs[at]
	}
	made, err := []*storage.Record(nil), errPanicked
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		for i, at := range mine {
			e := entries[at]
			if e.err, e.abandoned = err, ctx.Err() != nil; err == nil {
				e.record = made[i]
			}
			if known := v.byKey[e.key]; known == nil || known.Value != e {
				// dropped meanwhile, and for those alone who wait
			} else if err == nil {
				v.bytes += len(e.record.Value)
			} else {
				v.remove(known)
			}
			close(e.done)
		}
		v.evict()
	}()
	made, err = maker(ctx, wanted)
}

// evict forgets what has not been used for the longest time.
func (v *conversionCache) evict() {
	for last := v.order.Back(); last != nil && v.bytes > maxConversionBytes && v.order.Len() > 1; {
		e := last
		last = last.Prev()
		if e.Value.(*cachedConversion).record != nil { // not under way
			v.remove(e)
		}
	}
}

func (v *conversionCache) remove(e *list.Element) {
	known := v.order.Remove(e).(*cachedConversion)
	delete(v.byKey, known.key)
	if known.record != nil {
		v.bytes -= len(known.record.Value)
	}
}

// collect waits for the entries. again says that one was given up by somebody whose request had ended.
func collect(ctx context.Context, entries []*cachedConversion) (out []*storage.Record, again bool, err error) {
	out = make([]*storage.Record, len(entries))
	for i, e := range entries {
		select {
		case <-e.done:
		case <-ctx.Done():
			return nil, false, storageError(ctx.Err())
		}
		if e.err != nil {
			return nil, e.abandoned && ctx.Err() == nil, e.err
		}
		out[i] = e.record
	}
	return out, false, nil
}
