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

// maxConversionBytes limits the size of a conversionCache.
const maxConversionBytes = 64 << 20

// conversionCache caches objects at versions that they are not stored at. Over its size limit it evicts the
// least recently used ones. A converted object is held as a record, as if the object had been stored at that
// version. So labels, selectable fields and other values are derived from it as from a stored record.
// Concurrent requests for the same conversion share one call. The zero value is ready to use.
type conversionCache struct {
	mu     sync.Mutex
	byKey  map[conversionKey]*list.Element
	order  list.List // of *cachedConversion, the most recently used first
	bytes  int
	epochs map[schema.GroupResource]*conversionEpoch // of the kinds that a webhook converts
}

// conversionKey identifies a converted object.
type conversionKey struct {
	key        string // storage key
	revision   int64
	apiVersion string
	specHash   uint64           // of the CRD: a change of only its status or labels affects no conversion
	epoch      *conversionEpoch // nil for a conversion without a webhook
}

// conversionKeyAt returns a key without an object, for conversions to v.
func conversionKeyAt(v *resource.Version, epoch *conversionEpoch) conversionKey {
	key := conversionKey{apiVersion: v.APIVersion, epoch: epoch}
	if c := v.Definition.Custom; c != nil {
		key.specHash = c.SpecHash()
	}
	return key
}

var errPanicked = errors.New("panic during the conversion of an object")

// cachedConversion is one entry of a conversionCache. It is added before its conversion starts.
type cachedConversion struct {
	key       conversionKey
	started   time.Time
	done      chan struct{} // closed when record or err is set
	record    *storage.Record
	err       error
	abandoned bool // the request that was converting it was cancelled
}

// convertFunc converts records. It returns all of them or an error.
type convertFunc func(ctx context.Context, recs []*storage.Record) ([]*storage.Record, error)

// get returns the conversions of recs, in their order. key lacks the fields of the object, which get fills in.
// Missing conversions are made in one call of convert.
func (v *conversionCache) get(
	ctx context.Context, key conversionKey, now time.Time, recs []*storage.Record, convert convertFunc,
) ([]*storage.Record, error) {
	for {
		entries, missing := v.claim(key, now, recs)
		if len(missing) > 0 {
			v.fill(ctx, convert, recs, entries, missing)
		}
		out, retry, err := collect(ctx, entries)
		if !retry {
			return out, err
		}
	}
}

// claim returns the entries of recs. missing holds the indices of those that the caller has to fill.
func (v *conversionCache) claim(
	key conversionKey, now time.Time, recs []*storage.Record,
) (entries []*cachedConversion, missing []int) {
	entries = make([]*cachedConversion, len(recs))
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.byKey == nil {
		v.byKey = map[conversionKey]*list.Element{}
	}
	for i, rec := range recs {
		key.key, key.revision = rec.Key, rec.Modified
		if e := v.byKey[key]; e != nil {
			if cached := e.Value.(*cachedConversion); key.epoch == nil || now.Sub(cached.started) < maxConversionAge {
				v.order.MoveToFront(e)
				entries[i] = cached
				continue
			}
			v.remove(e)
		}
		entries[i] = &cachedConversion{key: key, started: now, done: make(chan struct{})}
		v.byKey[key] = v.order.PushFront(entries[i])
		missing = append(missing, i)
	}
	return entries, missing
}

// fill converts the missing entries. Errors are not cached.
func (v *conversionCache) fill(
	ctx context.Context, convert convertFunc, recs []*storage.Record, entries []*cachedConversion, missing []int,
) {
	in := make([]*storage.Record, len(missing))
	for i, at := range missing {
		in[i] = recs[at]
	}
	out, err := []*storage.Record(nil), errPanicked
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		for i, at := range missing {
			e := entries[at]
			if e.err, e.abandoned = err, ctx.Err() != nil; err == nil {
				e.record = out[i]
			}
			if cached := v.byKey[e.key]; cached == nil || cached.Value != e {
				// The entry has been dropped meanwhile. Only the waiting requests use it.
			} else if err == nil {
				v.bytes += len(e.record.Value)
			} else {
				v.remove(cached)
			}
			close(e.done)
		}
		v.evict()
	}()
	out, err = convert(ctx, in)
}

// evict removes the least recently used entries while the cache is over its size limit.
func (v *conversionCache) evict() {
	for last := v.order.Back(); last != nil && v.bytes > maxConversionBytes && v.order.Len() > 1; {
		e := last
		last = last.Prev()
		if e.Value.(*cachedConversion).record != nil { // not in progress
			v.remove(e)
		}
	}
}

func (v *conversionCache) remove(e *list.Element) {
	cached := v.order.Remove(e).(*cachedConversion)
	delete(v.byKey, cached.key)
	if cached.record != nil {
		v.bytes -= len(cached.record.Value)
	}
}

// collect waits until the entries are converted. retry reports that the request that was converting an entry
// has been cancelled.
func collect(ctx context.Context, entries []*cachedConversion) (out []*storage.Record, retry bool, err error) {
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
