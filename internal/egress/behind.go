package egress

import (
	"encoding/json"
	"slices"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// Behind returns a function that numbers who stands behind a Service. The number grows whenever the Service, its Endpoints or
// its EndpointSlices have been written since it was last asked for, even if they say what they said before: a webhook that is
// replaced at its address is not ready for a moment. head returns the newest state of the store, key says where it has the
// objects of a kind; of a kind's namespace, if there is no name.
func Behind(head func() *storage.Snapshot, key func(group, resource, namespace, name string) string) func(namespace, name string) uint64 {
	b := &behind{head: head, key: key, known: map[[2]string]*standing{}}
	return b.number
}

type behind struct {
	head func() *storage.Snapshot
	key  func(group, resource, namespace, name string) string

	mu    sync.Mutex
	last  uint64
	known map[[2]string]*standing // by namespace and name
}

// standing is how a Service stood when it was looked at. A revision is that of one state of one object.
type standing struct {
	number             uint64
	looked             int64 // the revision of the store
	service, endpoints int64 // revisions, 0 if there are none
	inNamespace        int   // EndpointSlices, of this Service or another
	slices             []int64
}

func (b *behind) number(namespace, name string) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	snap, before := b.head(), b.known[[2]string{namespace, name}]
	if before != nil && before.looked == snap.Revision() {
		return before.number
	}
	now := b.look(snap, before, namespace, name)
	if before != nil && before.service == now.service && before.endpoints == now.endpoints && slices.Equal(before.slices, now.slices) {
		now.number = before.number
	} else {
		b.last++
		now.number = b.last
	}
	b.known[[2]string{namespace, name}] = now
	return now.number
}

func (b *behind) look(snap *storage.Snapshot, before *standing, namespace, name string) *standing {
	all := b.key("discovery.k8s.io", "endpointslices", namespace, "")
	now := &standing{
		looked:      snap.Revision(),
		service:     revision(snap.Get(b.key("", "services", namespace, name))),
		endpoints:   revision(snap.Get(b.key("", "endpoints", namespace, name))),
		inNamespace: snap.Count(all, ""),
	}
	if before != nil && before.inNamespace == now.inNamespace && none(snap, all, before.looked) {
		now.slices = before.slices // those that there were then, and no others
		return now
	}
	for rec := range snap.Walk(all, "") {
		var slice metav1.PartialObjectMetadata
		if json.Unmarshal(rec.Value, &slice) == nil && slice.Labels[discoveryv1.LabelServiceName] == name {
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
