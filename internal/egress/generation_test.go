package egress

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
)

func keyOf(group, resource, namespace, name string) string {
	return "/registry/" + resource + "/" + namespace + "/" + name
}

// testStore is a store that a test writes to.
type testStore struct {
	testing.TB
	storage.Store
}

func newTestStore(t testing.TB) testStore {
	s, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return testStore{t, s}
}

// put writes an object, or deletes it if v is nil.
func (k testStore) put(resource, name string, v any) {
	k.Helper()
	w := storage.Write{Key: keyOf("", resource, "n", name)}
	if rec := k.Store.Head().Get(w.Key); rec != nil {
		w.Expected = rec.Modified
	}
	if v != nil {
		tree, _, err := object.DecodeJSON(marshal(v))
		if err != nil {
			k.Fatal(err)
		}
		w.Value = object.Pack(tree, 0).JSON()
	}
	if _, err := k.Commit(k.Context(), []storage.Write{w}); err != nil {
		k.Fatal(err)
	}
}

// TestGenerations checks that the generation of a Service's endpoints grows with each write that may change the
// endpoints, and with no other write. CNV-040
func TestGenerations(t *testing.T) {
	k := newTestStore(t)
	generation := Generations(k.Head, keyOf)("n", "hook")
	svc, yes, no := service("hook", "", corev1.ServicePort{Port: 443}), true, false
	one := func(ready *bool) *discoveryv1.EndpointSlice {
		return slice("hook", "hook-1", "", 8443, discoveryv1.AddressTypeIPv4, endpoint("10.0.0.1", ready))
	}
	last := generation()
	for i, c := range []struct {
		write   func()
		changes bool
	}{
		{func() { k.put("services", "hook", svc) }, true},
		{func() { k.put("endpointslices", "hook-1", one(&yes)) }, true},
		{func() {}, false},
		{func() { k.put("configmaps", "c", named("c")) }, false},
		{func() {
			k.put("endpointslices", "other-1", slice("other", "other-1", "", 1, discoveryv1.AddressTypeIPv4))
		}, false},
		{func() { k.put("services", "other", service("other", "")) }, false},
		{func() { k.put("endpoints", "other", &corev1.Endpoints{ObjectMeta: named("other")}) }, false},
		{func() { k.put("endpointslices", "hook-1", one(&no)); k.put("endpointslices", "hook-1", one(&yes)) }, true},
		{func() {
			k.put("endpointslices", "hook-2", slice("hook", "hook-2", "", 8443, discoveryv1.AddressTypeIPv4))
		}, true},
		{func() { k.put("endpointslices", "hook-2", nil) }, true},
		{func() { k.put("endpointslices", "other-1", nil) }, false},
		{func() { k.put("endpointslices", "hook-1", nil); k.put("endpointslices", "hook-1", one(&yes)) }, true},
		{func() { k.put("endpoints", "hook", &corev1.Endpoints{ObjectMeta: named("hook")}) }, true},
		{func() { k.put("endpoints", "hook", nil) }, true},
		{func() { k.put("services", "hook", nil) }, true},
	} {
		c.write()
		now := generation()
		if now < last || (now != last) != c.changes {
			t.Errorf("generation after write %d is %d, was %d; want a change: %t", i, now, last, c.changes)
		}
		last = now
	}
}

// BenchmarkGenerations measures endpoints.generation after a write to an object of another Service, which is the
// usual case.
func BenchmarkGenerations(b *testing.B) {
	k := newTestStore(b)
	for i := range 1000 {
		k.put("endpointslices", fmt.Sprint("s", i), slice("other", fmt.Sprint("s", i), "", 1,
			discoveryv1.AddressTypeIPv4))
	}
	k.put("services", "hook", service("hook", ""))
	generation := Generations(k.Head, keyOf)("n", "hook")
	var n int
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		n++
		k.put("configmaps", "c", named(fmt.Sprint(n)))
		b.StartTimer()
		generation()
	}
}

// BenchmarkGenerationUnchanged measures concurrent calls of endpoints.generation while nothing is written. Each
// read of a converted object calls it.
func BenchmarkGenerationUnchanged(b *testing.B) {
	k := newTestStore(b)
	k.put("services", "hook", service("hook", ""))
	generation := Generations(k.Head, keyOf)("n", "hook")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			generation()
		}
	})
}
