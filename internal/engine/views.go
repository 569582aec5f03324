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

// maxViewBytes bounds what views keeps.
const maxViewBytes = 64 << 20

// views keeps objects as they look at versions they were not stored at, the least
// recently used ones going first. A view is a record: what it would be had the object been stored like that, so that
// all that is derived from records (labels, selectable fields) is derived from views alike. Each is made once, however
// many want it at the same time. The zero value is ready.
type views struct {
	mu      sync.Mutex
	byKey   map[viewKey]*list.Element
	order   list.List // of *view, the most recently used first
	bytes   int
	origins map[schema.GroupResource]*origin // of the kinds whose objects a webhook converts
}

// viewKey names a view.
type viewKey struct {
	key        string // in the store
	revision   int64
	apiVersion string
	spec       uint64  // of the CRD: a write of its status or labels changes no view
	origin     *origin // nil where no webhook has a say
}

// viewsAt is the key of views at a version, but for the object.
func viewsAt(v *resource.Version, from *origin) viewKey {
	key := viewKey{apiVersion: v.APIVersion, origin: from}
	if c := v.Definition.Custom; c != nil {
		key.spec = c.SpecHash()
	}
	return key
}

var errPanicked = errors.New("a panic while an object was converted")

// view is one entry, in the map from the moment that somebody makes it.
type view struct {
	key    viewKey
	begun  time.Time
	made   chan struct{} // closed when record or err is there
	record *storage.Record
	err    error
	gone   bool // who was to make it gave up: whoever waits may try
}

// maker makes the views of some records at a version, all or none.
type maker func(ctx context.Context, recs []*storage.Record) ([]*storage.Record, error)

// get returns the views of recs with a key but for the object, in their order. Those that are missing are made in one go.
func (v *views) get(ctx context.Context, key viewKey, now time.Time, recs []*storage.Record, make maker) ([]*storage.Record, error) {
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
func (v *views) claim(key viewKey, now time.Time, recs []*storage.Record) (entries []*view, mine []int) {
	entries = make([]*view, len(recs))
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.byKey == nil {
		v.byKey = map[viewKey]*list.Element{}
	}
	for i, rec := range recs {
		key.key, key.revision = rec.Key, rec.Modified
		if e := v.byKey[key]; e != nil {
			if known := e.Value.(*view); key.origin == nil || now.Sub(known.begun) < maxConversionAge {
				v.order.MoveToFront(e)
				entries[i] = known
				continue
			}
			v.remove(e)
		}
		entries[i] = &view{key: key, begun: now, made: make(chan struct{})}
		v.byKey[key] = v.order.PushFront(entries[i])
		mine = append(mine, i)
	}
	return entries, mine
}

// fill makes the entries that are mine. Failures are not kept.
func (v *views) fill(ctx context.Context, maker maker, recs []*storage.Record, entries []*view, mine []int) {
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
			if e.err, e.gone = err, ctx.Err() != nil; err == nil {
				e.record = made[i]
			}
			if known := v.byKey[e.key]; known == nil || known.Value != e {
				// dropped meanwhile, and for those alone who wait
			} else if err == nil {
				v.bytes += len(e.record.Value)
			} else {
				v.remove(known)
			}
			close(e.made)
		}
		v.shrink()
	}()
	made, err = maker(ctx, wanted)
}

// shrink forgets what has not been used for the longest time.
func (v *views) shrink() {
	for last := v.order.Back(); last != nil && v.bytes > maxViewBytes && v.order.Len() > 1; {
		e := last
		last = last.Prev()
		if e.Value.(*view).record != nil { // not under way
			v.remove(e)
		}
	}
}

func (v *views) remove(e *list.Element) {
	known := v.order.Remove(e).(*view)
	delete(v.byKey, known.key)
	if known.record != nil {
		v.bytes -= len(known.record.Value)
	}
}

// collect waits for the entries. again says that one was given up by somebody whose request had ended.
func collect(ctx context.Context, entries []*view) (out []*storage.Record, again bool, err error) {
	out = make([]*storage.Record, len(entries))
	for i, e := range entries {
		select {
		case <-e.made:
		case <-ctx.Done():
			return nil, false, storageError(ctx.Err())
		}
		if e.err != nil {
			return nil, e.gone && ctx.Err() == nil, e.err
		}
		out[i] = e.record
	}
	return out, false, nil
}
