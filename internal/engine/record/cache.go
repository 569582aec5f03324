package record

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// maxConversionBytes limits the size of a conversionCache.
const maxConversionBytes = 64 << 20

// conversionCache caches objects that have been converted from their storage version to another version. When its
// size exceeds the limit, it evicts the least recently used objects. A converted object is held as a record, as if
// it were stored at that version. So labels, selectable fields and other values are derived from it as from a
// stored record. Concurrent requests for the same conversion share one call. The zero value is ready to use.
type conversionCache struct {
	mu     sync.Mutex
	byKey  map[conversionKey]*list.Element
	order  list.List // of *cachedConversion, from the most to the least recently used
	bytes  int
	epochs map[schema.GroupResource]*conversionEpoch // for the kinds that a webhook converts
}

// conversionKey identifies a converted object.
type conversionKey struct {
	key        string // storage key
	revision   int64
	apiVersion string
	specHash   uint64           // of the CRD: conversions depend on the spec and not on the status or labels
	epoch      *conversionEpoch // nil for a conversion without a webhook
}

// conversionKeyAt returns a key for conversions to v. Its fields that identify the object are not set.
func conversionKeyAt(v *resource.Version, epoch *conversionEpoch) conversionKey {
	key := conversionKey{apiVersion: v.APIVersion, epoch: epoch}
	if v.Schema != nil {
		key.specHash = v.Definition.Custom.SpecHash()
	}
	return key
}

var errPanicked = errors.New("panic during the conversion of an object")

// cachedConversion is one entry of a conversionCache. The entry is added before its conversion starts.
type cachedConversion struct {
	key       conversionKey
	started   time.Time
	done      chan struct{} // closed after record or err has been set
	record    *storage.Record
	err       error
	abandoned bool // true if the request that made the conversion was cancelled
}

// convertFunc converts either all records or none. If it converts none, it returns an error.
type convertFunc func(ctx context.Context, recs []*storage.Record) ([]*storage.Record, error)

// get returns the conversions of recs, in the same order. It makes missing conversions in one call of convert. The
// caller leaves the fields of key that identify an object empty, and get sets them.
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

// claim returns the entries of recs. missing holds the indices of the entries that the caller must fill.
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
				// The cache has dropped the entry meanwhile. Only the waiting requests use the entry.
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
		if e.Value.(*cachedConversion).record != nil { // only entries whose conversion has ended
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

// collect waits until the entries are converted. retry is true if the request that was converting one of them has
// been cancelled.
func collect(ctx context.Context, entries []*cachedConversion) (out []*storage.Record, retry bool, err error) {
	out = make([]*storage.Record, len(entries))
	for i, e := range entries {
		select {
		case <-e.done:
		case <-ctx.Done():
			return nil, false, verb.Status(ctx.Err())
		}
		if e.err != nil {
			return nil, e.abandoned && ctx.Err() == nil, e.err
		}
		out[i] = e.record
	}
	return out, false, nil
}
