package plugins

import (
	"fmt"
	"testing"

	corev1 "k8s.io/client-go/listers/core/v1"

	"github.com/trellis-k8s/trellis/internal/kinds"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// accounts returns a lister of the ServiceAccounts a and b in the namespace default. The returned function sets their
// revision.
func accounts(t testing.TB) (corev1.ServiceAccountNamespaceLister, func(revision int64)) {
	kinds := catalog.NewLive(nil,
		func(*catalog.Live) []*resource.Definition { return kinds.Definitions(kinds.Config{}) })
	var head *storage.Snapshot
	at := func(revision int64) {
		l := new(storage.Loader)
		for _, name := range []string{"a", "b"} {
			rec := &storage.Record{
				Key: "/registry/serviceaccounts/default/" + name, Modified: revision,
				Value: fmt.Appendf(nil, `{"metadata":{"name":%q}}`, name),
			}
			if err := l.Add(rec); err != nil {
				t.Fatal(err)
			}
		}
		head = l.Snapshot(revision)
	}
	at(1)
	informers := Informers{Catalog: kinds.Load, Head: func() *storage.Snapshot { return head }}
	return informers.Core().V1().ServiceAccounts().Lister().ServiceAccounts("default"), at
}

// TestListersFindWhatIsStored checks that a lister returns stored objects, and decodes an object again only after it
// has been written.
func TestListersFindWhatIsStored(t *testing.T) {
	lister, at := accounts(t)
	for i, c := range []struct {
		name string
		at   int64
	}{{"a", 1}, {"a", 1}, {"b", 1}, {"a", 1}, {"a", 2}, {"a", 3}} {
		at(c.at)
		found, err := lister.Get(c.name)
		if err != nil || found.Name != c.name || found.ResourceVersion != fmt.Sprint(c.at) {
			t.Fatalf("%d: %v, %v", i, found, err)
		}
		if second, _ := lister.Get(c.name); second != found {
			t.Errorf("%d: the object was decoded again", i)
		}
	}
	if _, err := lister.Get("c"); err == nil {
		t.Error("got c, want an error")
	}
}

// BenchmarkLister measures repeated lookups of the same ServiceAccount.
func BenchmarkLister(b *testing.B) {
	lister, _ := accounts(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := lister.Get("a"); err != nil {
			b.Fatal(err)
		}
	}
}
