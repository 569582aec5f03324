package engine

import (
	"container/list"
	"context"
	"errors"
	"sync"

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
	mu    sync.Mutex
	byKey map[viewKey]*list.Element
	order list.List // of *view, the most recently used first
	bytes int
}

// viewKey names a view: a revision is that of one object.
type viewKey struct {
	revision   int64
	apiVersion string
	spec       uint64 // of the CRD: a write of its status or labels changes no view
}

// viewsAt is the key of views at a version, but for the revision.
func viewsAt(v *resource.Version) viewKey {
	key := viewKey{apiVersion: v.APIVersion}
	if c := v.Definition.Custom; c != nil {
		key.spec = c.SpecHash()
	}
	return key
}

var errPanicked = errors.New("a panic while an object was converted")

// view is one entry, in the map from the moment that somebody makes it.
type view struct {
	key    viewKey
	made   chan struct{} // closed when record or err is there
	record *storage.Record
	err    error
	gone   bool // who was to make it gave up: whoever waits may try
}

// maker makes the views of some records at a version, all or none.
type maker func(ctx context.Context, recs []*storage.Record) ([]*storage.Record, error)

// get returns the views of recs at a version, in their order. Those that are missing are made in one go.
func (v *views) get(ctx context.Context, at *resource.Version, recs []*storage.Record, make maker) ([]*storage.Record, error) {
	for {
		entries, mine := v.claim(at, recs)
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
func (v *views) claim(at *resource.Version, recs []*storage.Record) (entries []*view, mine []int) {
	entries = make([]*view, len(recs))
	key := viewsAt(at)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.byKey == nil {
		v.byKey = map[viewKey]*list.Element{}
	}
	for i, rec := range recs {
		key.revision = rec.Modified
		if e := v.byKey[key]; e != nil {
			v.order.MoveToFront(e)
			entries[i] = e.Value.(*view)
			continue
		}
		entries[i] = &view{key: key, made: make(chan struct{})}
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
				v.bytes += len(e.record.Value)
			} else if known := v.byKey[e.key]; known != nil && known.Value == e {
				v.order.Remove(known)
				delete(v.byKey, e.key)
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
		e := last.Value.(*view)
		last = last.Prev()
		if e.record == nil {
			continue // under way
		}
		v.order.Remove(v.byKey[e.key])
		delete(v.byKey, e.key)
		v.bytes -= len(e.record.Value)
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
