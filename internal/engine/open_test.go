package engine

import (
	"context"
	"errors"
	"testing"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// hookedStore is a store that calls hooks before Head and Watch.
type hookedStore struct {
	storage.Store
	head  func()
	watch func(context.Context) error
}

func (w *hookedStore) Head() *storage.Snapshot {
	w.head()
	return w.Store.Head()
}

func (w *hookedStore) Watch(ctx context.Context, prefix string, after int64) (*storage.Cursor, error) {
	if err := w.watch(ctx); err != nil {
		return nil, err
	}
	return w.Store.Watch(ctx, prefix, after)
}

func newHookedStore(t *testing.T) *hookedStore {
	t.Helper()
	s := &hookedStore{openStore(t), func() {}, func(context.Context) error { return nil }}
	t.Cleanup(func() { _ = s.Store.Close() })
	return s
}

func noKinds(*catalog.Live) []*resource.Definition { return nil }

// TestOpenServesStoredCRDs checks that the kinds of stored CRDs are served when Open returns (CRD-071).
func TestOpenServesStoredCRDs(t *testing.T) {
	s := newHookedStore(t)
	crd := object.Pack(decode(t, cronTabs(cronTabSchema, cronTabSchema)), 0).JSON()
	if _, err := s.Commit(t.Context(), []storage.Write{{Key: cronTabKey, Value: crd}}); err != nil {
		t.Fatal(err)
	}
	entered, proceed := make(chan struct{}, 100), make(chan struct{})
	s.head = func() { entered <- struct{}{}; <-proceed }
	opened := make(chan *Engine, 1)
	go func() {
		e, err := Open(t.Context(), Config{Store: s, Kinds: noKinds})
		if err != nil {
			t.Error(err)
		}
		opened <- e
	}()
	for range 2 { // Open and the catalog's watch each call Head
		select {
		case <-entered:
		case <-opened:
			t.Fatal("Open returned before it has read the store")
		}
	}
	close(proceed)
	e := <-opened
	defer e.Close()
	if e.Live.Load().Find("stable.example.com", "v1", "crontabs") == nil {
		t.Error("CronTabs are not served")
	}
}

// TestCloseStopsStoreWatch checks that the watch of the store continues after Open has returned, and ends with
// Close.
func TestCloseStopsStoreWatch(t *testing.T) {
	s := newHookedStore(t)
	watchContext := make(chan context.Context, 1)
	s.watch = func(ctx context.Context) error { watchContext <- ctx; return nil }
	e, err := Open(t.Context(), Config{Store: s, Kinds: noKinds, Failed: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	ctx := <-watchContext
	if ctx.Err() != nil {
		t.Error("the watch ended with the call of Open")
	}
	e.Close()
	if ctx.Err() == nil {
		t.Error("the watch did not end with Close")
	}
}

// TestOpenReportsWatchFailure checks that Failed is called if the store can no longer be watched.
func TestOpenReportsWatchFailure(t *testing.T) {
	s, broken, failures := newHookedStore(t), errors.New("broken"), make(chan error, 1)
	opened := make(chan struct{})
	s.watch = func(context.Context) error { <-opened; return broken }
	e, err := Open(t.Context(), Config{Store: s, Kinds: noKinds, Failed: func(err error) { failures <- err }})
	if err != nil {
		t.Fatal(err)
	}
	close(opened)
	if err := <-failures; !errors.Is(err, broken) {
		t.Error(err)
	}
	e.Close()
}
