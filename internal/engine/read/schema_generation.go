package read

import (
	"bytes"
	"context"
	"sync"

	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// schemaGenerations holds the schema generations of the CRDs whose objects are watched. Its keys are the storage
// keys of the CRDs. The zero value is ready to use.
type schemaGenerations struct {
	mu    sync.Mutex
	byKey map[string]*schemaGeneration
	store storage.Store // set with the first generation
}

// schemaGeneration is a period in which no part of a CRD changes that affects watches. At its end, all watches of
// the CRD's objects end, and clients start new watches.
type schemaGeneration struct {
	set     *schemaGenerations
	record  *storage.Record // the CRD at the start of the first watch
	users   int             // number of watches
	changed chan struct{}   // closed at the end of the generation
}

// schemaGenerationOf returns the newest definition of a custom version and its schema generation. The caller
// must release the generation.
func (r *Reader) schemaGenerationOf(
	ctx context.Context, v *resource.Version,
) (*resource.Version, *schemaGeneration, error) {
	for {
		snap := r.Store.Head()
		key, revision := v.Definition.CRD()
		rec := snap.Get(key)
		if rec != nil && rec.Modified == revision {
			return v, r.joinGeneration(rec), nil
		}
		catalog, err := r.Live.Wait(ctx, snap.Revision())
		if err != nil {
			return nil, nil, verb.Status(err)
		}
		next := catalog.Find(v.GroupVersion.Group, v.GroupVersion.Version, v.Definition.Names.Plural)
		if next == nil || next.Schema == nil {
			return nil, nil, verb.NotServed()
		}
		v = next
	}
}

// joinGeneration adds a watch to the current generation of the CRD in rec. If there is none, it starts one.
func (r *Reader) joinGeneration(rec *storage.Record) *schemaGeneration {
	all := &r.schemaGenerations
	all.mu.Lock()
	defer all.mu.Unlock()
	if s := all.byKey[rec.Key]; s != nil {
		s.users++
		return s
	}
	if all.byKey == nil {
		all.byKey, all.store = map[string]*schemaGeneration{}, r.Store
		r.Live.OnEvents(all.onEvents)
	}
	s := &schemaGeneration{set: all, record: rec, users: 1, changed: make(chan struct{})}
	all.byKey[rec.Key] = s
	all.checkCurrent(s) // onEvents has not processed changes from before s was added
	return s
}

// onEvents ends the generations whose CRDs the events have changed. If events is nil, events were missed, and
// onEvents checks all generations.
func (all *schemaGenerations) onEvents(events []*storage.Event) {
	all.mu.Lock()
	defer all.mu.Unlock()
	for _, ev := range events {
		s := all.byKey[ev.Key]
		if s != nil && ev.Revision > s.record.Modified && !sameWatchSchema(ev.Previous, ev.Record) {
			all.end(s)
		}
	}
	if events == nil {
		for _, s := range all.byKey {
			all.checkCurrent(s)
		}
	}
}

// checkCurrent ends a generation if its CRD has changed in the store.
func (all *schemaGenerations) checkCurrent(s *schemaGeneration) {
	if current := all.store.Head().Get(s.record.Key); current != s.record && !sameWatchSchema(s.record, current) {
		all.end(s)
	}
}

// sameWatchSchema reports whether two revisions of a CRD are equal in the parts that affect watches: the spec and
// the accepted names.
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

// end ends a generation and its watches. Later watches start a new generation.
func (all *schemaGenerations) end(s *schemaGeneration) {
	delete(all.byKey, s.record.Key)
	close(s.changed)
}

// release removes a watch from the generation.
func (s *schemaGeneration) release() {
	s.set.mu.Lock()
	defer s.set.mu.Unlock()
	if s.users--; s.users == 0 && s.set.byKey[s.record.Key] == s {
		delete(s.set.byKey, s.record.Key)
	}
}
