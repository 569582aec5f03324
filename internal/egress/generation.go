package egress

import (
	"slices"
	"sync/atomic"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Generations returns a function for Dialer.Generation. The generation of a Service's endpoints grows whenever the
// Service, its Endpoints or its EndpointSlices have been written since the last call. A write that restores
// earlier content also counts: if a webhook is replaced at the same address, it is not ready for a moment. head
// returns the newest snapshot of the store. key returns the storage key of an object, or the key prefix of a
// namespace if name is "".
func Generations(
	head func() *storage.Snapshot,
	key func(group, resource, namespace, name string) string,
) func(namespace, name string) func() uint64 {
	g := &generations{head: head, key: key}
	return func(namespace, name string) func() uint64 {
		e := &endpoints{shared: g, namespace: namespace, name: name}
		e.last.Store(&state{revision: -1, inNamespace: -1})
		return e.generation
	}
}

type generations struct {
	head func() *storage.Snapshot
	key  func(group, resource, namespace, name string) string
	last atomic.Uint64
}

// endpoints tracks the endpoints of a Service.
type endpoints struct {
	shared          *generations
	namespace, name string
	last            atomic.Pointer[state]
}

// state describes the objects of a Service at a revision of the store.
type state struct {
	generation         uint64
	revision           int64   // of the store
	service, endpoints int64   // the objects' revisions, 0 if they do not exist
	inNamespace        int     // number of EndpointSlices in the namespace
	slices             []int64 // revisions of the Service's EndpointSlices
}

// generation returns the current generation. It takes no lock, because each read of a converted object calls it.
func (e *endpoints) generation() uint64 {
	for {
		before := e.last.Load()
		snap := e.shared.head() // never older than before
		if before.revision == snap.Revision() {
			return before.generation
		}
		now := e.read(snap, before)
		if before.service == now.service && before.endpoints == now.endpoints &&
			slices.Equal(before.slices, now.slices) {
			now.generation = before.generation
		} else {
			now.generation = e.shared.last.Add(1)
		}
		if e.last.CompareAndSwap(before, now) {
			return now.generation
		}
	}
}

// read reads the objects of the Service. It skips the EndpointSlices if none in the namespace has changed.
func (e *endpoints) read(snap *storage.Snapshot, before *state) *state {
	key := e.shared.key
	all := key("discovery.k8s.io", "endpointslices", e.namespace, "")
	now := &state{
		revision:    snap.Revision(),
		service:     revision(snap.Get(key("", "services", e.namespace, e.name))),
		endpoints:   revision(snap.Get(key("", "endpoints", e.namespace, e.name))),
		inNamespace: snap.Count(all, ""),
	}
	if before.inNamespace == now.inNamespace && unchanged(snap, all, before.revision) {
		now.slices = before.slices
		return now
	}
	for rec := range snap.Walk(all, "") {
		if HasSlice(e.name, rec.Value) {
			now.slices = append(now.slices, rec.Modified)
		}
	}
	return now
}

// unchanged returns false if a key with the prefix was written after the given revision.
func unchanged(snap *storage.Snapshot, prefix string, after int64) bool {
	for range snap.Changed(prefix, after) {
		return false
	}
	return true
}

func revision(rec *storage.Record) int64 {
	if rec == nil {
		return 0
	}
	return rec.Modified
}
