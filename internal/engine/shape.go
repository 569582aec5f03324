package engine

import (
	"bytes"
	"context"
	"sync"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// shapes are the CRDs whose objects are watched, by storage key. The zero value is ready.
type shapes struct {
	mu    sync.Mutex
	byKey map[string]*shape
}

// shape follows one CRD for all watches of its objects, until it changes so that
// they must start anew.
type shape struct {
	all   *shapes
	key   string
	users int
	ended chan struct{} // closed when the shape has changed
	stop  chan struct{} // closed when nobody watches any more
}

// shapeOf returns the newest state of a custom version, and the shape it has. The
// caller releases the shape.
func (e *Engine) shapeOf(ctx context.Context, v *resource.Version) (*resource.Version, *shape, error) {
	for {
		snap, custom := e.Store.Head(), v.Definition.Custom
		rec := snap.Get(custom.Key)
		if rec != nil && rec.Modified == custom.Revision {
			s, err := e.shapes.use(e.Store, rec, snap.Revision())
			return v, s, storageError(err)
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

// use joins the followers of the CRD in rec, which is its state at revision.
func (all *shapes) use(store *storage.Store, rec *storage.Record, revision int64) (*shape, error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if s := all.byKey[rec.Key]; s != nil {
		s.users++
		return s, nil
	}
	cursor, err := store.Watch(context.Background(), rec.Key, revision)
	if err != nil {
		return nil, err
	}
	s := &shape{all: all, key: rec.Key, users: 1, ended: make(chan struct{}), stop: make(chan struct{})}
	if all.byKey == nil {
		all.byKey = map[string]*shape{}
	}
	all.byKey[rec.Key] = s
	go s.follow(cursor)
	return s, nil
}

// follow waits for the change that ends the shape.
func (s *shape) follow(cursor *storage.Cursor) {
	defer cursor.Close()
	for {
		select {
		case <-s.stop:
			return
		case <-cursor.Ready():
		}
		events, _, err := cursor.Take(nil)
		for _, ev := range events {
			if ev.Key == s.key && !sameShape(ev.Previous, ev.Record) {
				s.end()
				return
			}
		}
		if err != nil {
			s.end()
			return
		}
	}
}

// sameShape compares what watches of a CRD's objects depend on: all of its spec, and the names
// it got.
func sameShape(a, b *storage.Record) bool {
	if a == nil || b == nil {
		return false
	}
	paths := [][]string{{"spec"}, {"status", "acceptedNames"}}
	x, y := make([][]byte, len(paths)), make([][]byte, len(paths))
	object.Fields(object.Packed(a.Value).JSON(), paths, x)
	object.Fields(object.Packed(b.Value).JSON(), paths, y)
	return bytes.Equal(x[0], y[0]) && bytes.Equal(x[1], y[1])
}

// end tells the watches, and makes later ones start with a new shape.
func (s *shape) end() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if s.all.byKey[s.key] == s {
		delete(s.all.byKey, s.key)
	}
	close(s.ended)
}

// release leaves the shape; the last one to leave stops it.
func (s *shape) release() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	if s.users--; s.users > 0 {
		return
	}
	if s.all.byKey[s.key] == s {
		delete(s.all.byKey, s.key)
	}
	close(s.stop)
}
