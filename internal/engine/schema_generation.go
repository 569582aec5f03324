package engine

import (
	"bytes"
	"context"
	"sync"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// schemaGenerations are the CRDs whose objects are watched, by storage key. The zero value is ready.
type schemaGenerations struct {
	mu    sync.Mutex
	byKey map[string]*schemaGeneration
	store storage.Store // set with the first shape
}

// schemaGeneration is what all watches of a CRD's objects rely on, until it changes so that they must start anew.
type schemaGeneration struct {
	set     *schemaGenerations
	record  *storage.Record // of the CRD when the first watch began
	users   int
	changed chan struct{} // closed when the shape has changed
}

// schemaGenerationOf returns the newest state of a custom version, and the shape it has. The
// caller releases the shape.
func (e *Engine) schemaGenerationOf(ctx context.Context, v *resource.Version) (*resource.Version, *schemaGeneration, error) {
	for {
		snap, custom := e.Store.Head(), v.Definition.Custom
		rec := snap.Get(custom.Key)
		if rec != nil && rec.Modified == custom.Revision {
			return v, e.joinGeneration(rec), nil
		}
		catalog, err := e.Live.Wait(ctx, snap.Revision())
		if err != nil {
			return nil, nil, storageError(err)
		}
		next := catalog.Find(v.GroupVersion.Group, v.GroupVersion.Version, v.Definition.Names.Plural)
		if next == nil || next.Definition.Custom == nil {
			return nil, nil, notServed()
		}
		v = next
	}
}

// joinGeneration joins the watches of the CRD in rec.
func (e *Engine) joinGeneration(rec *storage.Record) *schemaGeneration {
	all := &e.schemaGenerations
	all.mu.Lock()
	defer all.mu.Unlock()
	if s := all.byKey[rec.Key]; s != nil {
		s.users++
		return s
	}
	if all.byKey == nil {
		all.byKey, all.store = map[string]*schemaGeneration{}, e.Store
		e.Live.OnEvents(all.onEvents)
	}
	s := &schemaGeneration{set: all, record: rec, users: 1, changed: make(chan struct{})}
	all.byKey[rec.Key] = s
	all.checkCurrent(s) // what has changed before it stood there, nobody will tell
	return s
}

// onEvents ends the shapes that have changed; nil says that some may have.
func (all *schemaGenerations) onEvents(events []*storage.Event) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, ev := range events {
		if s := all.byKey[ev.Key]; s != nil && ev.Revision > s.record.Modified && !sameWatchSchema(ev.Previous, ev.Record) {
			all.end(s)
		}
	}
	if events == nil {
		for _, s := range all.byKey {
			all.checkCurrent(s)
		}
	}
}

func (all *schemaGenerations) checkCurrent(s *schemaGeneration) {
	if now := all.store.Head().Get(s.record.Key); now != s.record && !sameWatchSchema(s.record, now) {
		all.end(s)
	}
}

// sameWatchSchema compares what watches of a CRD's objects depend on: all of its spec, and the names
// it got.
func sameWatchSchema(a, b *storage.Record) bool {
	if a == nil || b == nil {
		return false
	}
	paths := [][]string{{"spec"}, {"status", "acceptedNames"}}
	x, y := make([][]byte, len(paths)), make([][]byte, len(paths))
	object.Fields(a.Value, paths, x)
	object.Fields(b.Value, paths, y)
	return bytes.Equal(x[0], y[0]) && bytes.Equal(x[1], y[1])
}

// end tells the watches, and makes later ones start with a new shape.
func (all *schemaGenerations) end(s *schemaGeneration) {
	delete(all.byKey, s.record.Key)
	close(s.changed)
}

// release leaves the shape.
func (s *schemaGeneration) release() {
	s.set.mu.Lock()
	defer s.set.mu.Unlock()
	if s.users--; s.users == 0 && s.set.byKey[s.record.Key] == s {
		delete(s.set.byKey, s.record.Key)
	}
}
