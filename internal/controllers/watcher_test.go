package controllers_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/trellis-k8s/trellis/internal/controllers/informer"
	"github.com/trellis-k8s/trellis/testserver"
)

// watchKinds watches the objects of all kinds through the API until ctx is done, and calls onObject for each of them
// and for each change.
func watchKinds(
	ctx context.Context, config *rest.Config,
	onObject func(resource string, m *metav1.PartialObjectMetadata, deleted bool),
) {
	onChange := func(ch informer.Change) {
		for _, m := range ch.Objects() {
			onObject(ch.Kind.Resource, m, ch.Deleted)
		}
	}
	config = rest.CopyConfig(config)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	d := kubernetes.NewForConfigOrDie(config).Discovery()
	informer.New(d, metadata.NewForConfigOrDie(config), nil, onChange).Run(ctx)
}

// TestWatchThroughAPI checks that controllers without a Feed, as in a separate process, watch existing and new
// objects through the API. This includes objects of new kinds.
func TestWatchThroughAPI(t *testing.T) {
	s := testserver.Start(t)
	w := connect(t, s)
	first := w.crd(t, "first.example.com", "First", "Namespaced")
	w.create(t, first, "default", object("First", "first.example.com/v1", "a"))

	changes := make(chan string, 10000)
	go func() {
		watchKinds(
			t.Context(),
			s.Config,
			func(resource string, m *metav1.PartialObjectMetadata, deleted bool) {
				if m.UID == "" || m.ResourceVersion == "" || m.Labels != nil {
					t.Errorf("got incomplete metadata %+v", m)
				}
				select {
				case changes <- fmt.Sprintf(
					"%s/%s %v %d %t", resource, m.Name, m.Finalizers, len(m.OwnerReferences), deleted):
				case <-t.Context().Done():
				}
			},
		)
	}()
	await := func(want string) {
		t.Helper()
		timeout := time.After(20 * time.Second)
		for {
			select {
			case got := <-changes:
				if got == want {
					return
				}
			case <-timeout:
				t.Fatalf("change %q was not reported", want)
			}
		}
	}
	await("firsts/a [] 0 false")
	owner := w.create(t, first, "default", object("First", "first.example.com/v1", "b"))
	await("firsts/b [] 0 false")
	second := w.crd(t, "second.example.com", "Second", "Cluster")
	w.create(t, second, "", owned(object("Second", "second.example.com/v1", "c"), nil, "example.com/x"))
	await("seconds/c [example.com/x] 0 false")
	w.create(t, first, "default", owned(object("First", "first.example.com/v1", "d"), owners(reference(owner, false))))
	await("firsts/d [] 1 false")
	w.delete(t, first, "default", "a", "")
	await("firsts/a [] 0 true")
}

// TestWatchThroughAPIStops checks that no change is reported after the watch through the API has stopped.
func TestWatchThroughAPIStops(t *testing.T) {
	s := testserver.Start(t)
	ctx, stop := context.WithCancel(t.Context())
	once, ended := sync.Once{}, make(chan struct{})
	watchKinds(ctx, s.Config, func(string, *metav1.PartialObjectMetadata, bool) {
		once.Do(func() {
			stop()
			select {
			case <-ended:
				t.Error("WatchKinds returned during a call of its function")
			case <-time.After(200 * time.Millisecond):
			}
		})
	})
	close(ended)
}
