package egress

import (
	"slices"
	"sync/atomic"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Generations returns a function that finds the generation of the endpoints of a Service (Dialer.Generation). It grows whenever
// the Service, its Endpoints or its EndpointSlices have been written since it was last asked for, even if they say what they
// said before: a webhook that is replaced at its address is not ready for a moment. head returns the newest state of the
// store, key says where it has the objects of a kind; of a kind's namespace, if there is no name.
func Generations(head func() *storage.Snapshot, key func(group, resource, namespace, name string) string) func(namespace, name string) func() uint64 {
	g := &generations{head: head, key: key}
	return func(namespace, name string) func() uint64 {
		e := &endpoints{all: g, namespace: namespace, name: name}
		e.known.Store(&state{looked: -1, inNamespace: -1})
		return e.generation
	}
}

type generations struct {
	head func() *storage.Snapshot
	key  func(group, resource, namespace, name string) string
	last atomic.Uint64
}

// endpoints are those of a Service.
type endpoints struct {
	all             *generations
	namespace, name string
	known           atomic.Pointer[state]
}

// state is how they were when they were looked at. A revision is that of one state of one object.
type state struct {
	generation         uint64
	looked             int64 // the revision of the store
	service, endpoints int64 // revisions, 0 if there are none
	inNamespace        int   // EndpointSlices, of this Service or another
	slices             []int64
}

// generation takes no lock: it is asked for by each read of what a webhook has converted.
func (e *endpoints) generation() uint64 {
	for {
		before := e.known.Load()
		snap := e.all.head() // is not older than what is known
		if before.looked == snap.Revision() {
			return before.generation
		}
		now := e.look(snap, before)
		if before.service == now.service && before.endpoints == now.endpoints && slices.Equal(before.slices, now.slices) {
			now.generation = before.generation
		} else {
			now.generation = e.all.last.Add(1)
		}
		if e.known.CompareAndSwap(before, now) {
			return now.generation
		}
	}
}

func (e *endpoints) look(snap *storage.Snapshot, before *state) *state {
	key := e.all.key
	all := key("discovery.k8s.io", "endpointslices", e.namespace, "")
	now := &state{
		looked:      snap.Revision(),
		service:     revision(snap.Get(key("", "services", e.namespace, e.name))),
		endpoints:   revision(snap.Get(key("", "endpoints", e.namespace, e.name))),
		inNamespace: snap.Count(all, ""),
	}
	if before.inNamespace == now.inNamespace && none(snap, all, before.looked) {
		now.slices = before.slices // those that there were then, and no others
		return now
	}
	for rec := range snap.Walk(all, "") {
		if HasSlice(e.name, rec.Value) {
			now.slices = append(now.slices, rec.Modified)
		}
	}
	return now
}

// none reports that nothing with a prefix was written after a revision.
func none(snap *storage.Snapshot, prefix string, after int64) bool {
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
