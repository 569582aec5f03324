package catalog

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/embedded"
)

func openStore(t testing.TB) storage.Store {
	t.Helper()
	s, err := embedded.Open(embedded.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// crdTree returns an established CRD with one version.
func crdTree(group, plural, kind string) object.Tree {
	names := func() object.Tree {
		return object.Tree{"plural": plural, "singular": plural + "x", "kind": kind, "listKind": kind + "List"}
	}
	return object.Tree{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object.Tree{"name": plural + "." + group},
		"spec": object.Tree{
			"group": group, "names": names(), "scope": "Namespaced",
			"versions": []any{object.Tree{
				"name": "v1", "served": true, "storage": true,
				"schema": object.Tree{"openAPIV3Schema": object.Tree{"type": "object"}},
			}},
		},
		"status": object.Tree{
			"acceptedNames": names(),
			"conditions":    []any{object.Tree{"type": "Established", "status": "True"}},
		},
	}
}

func put(t testing.TB, s storage.Store, key string, value object.Tree, expected int64) int64 {
	t.Helper()
	w := storage.Write{Key: key, Expected: expected}
	if value != nil {
		w.Value = object.Pack(value, 0).JSON()
	}
	events, err := s.Commit(t.Context(), []storage.Write{w})
	if err != nil {
		t.Fatal(err)
	}
	return events[0].Revision
}

func noKinds(*Live) []*resource.Definition { return nil }

func follow(t testing.TB, l *Live) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = l.Follow(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// TestLiveFollowsTheStore checks that the catalog follows creates and deletes of CRDs, and that waits for other
// changes end.
//
// CRD-001, CRD-017, CRD-027, CRD-071
func TestLiveFollowsTheStore(t *testing.T) {
	s := openStore(t)
	l := NewLive(s, noKinds)
	put(t, s, definition.CRDPrefix+"before.example.com", crdTree("example.com", "before", "Before"), 0)
	follow(t, l)
	c, err := l.Current(t.Context())
	if err != nil || c.Find("example.com", "v1", "before") == nil {
		t.Fatalf("a stored CRD is not served: %v", err)
	}
	at := put(t, s, definition.CRDPrefix+"after.example.com", crdTree("example.com", "after", "After"), 0)
	if c, _ = l.Wait(t.Context(), at); c.Find("example.com", "v1", "after") == nil || c.Revision() != at {
		t.Fatal("Wait returned before the catalog contained the CRD")
	}
	deleted := put(t, s, definition.CRDPrefix+"after.example.com", nil, at)
	if c, _ = l.Wait(t.Context(), deleted); c.Find("example.com", "v1", "after") != nil {
		t.Fatal("a deleted CRD is still served")
	}
	// Changes of other objects do not change the catalog, but waits for them must end.
	other := put(t, s, "/registry/configmaps/default/a", object.Tree{"kind": "ConfigMap"}, 0)
	if _, err = l.Wait(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if c, _ = l.Current(t.Context()); c.Revision() != deleted {
		t.Fatalf("got revision %d, want that of the last change of a CRD, %d", c.Revision(), deleted)
	}
}

// TestWaitEndsWithItsContext checks that Wait returns an error when its context ends.
func TestWaitEndsWithItsContext(t *testing.T) {
	s := openStore(t)
	l := NewLive(s, noKinds)
	follow(t, l)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.Wait(ctx, 1<<40); err == nil {
		t.Fatal("Wait returned no error for a future revision")
	}
}

// TestWaitUnderLoad checks that each of many concurrent writers finds its own kind as soon as Wait returns, while
// others change other keys and wait for these changes.
//
// CRD-015
func TestWaitUnderLoad(t *testing.T) {
	s := openStore(t)
	l := NewLive(s, noKinds)
	follow(t, l)
	var g sync.WaitGroup
	for i := range 8 {
		g.Go(func() {
			for n := range 50 {
				name := fmt.Sprintf("k%dx%d", i, n)
				if i%2 == 0 {
					at := put(t, s, "/registry/configmaps/default/"+name, object.Tree{}, 0)
					if _, err := l.Wait(t.Context(), at); err != nil {
						t.Error(err)
					}
					continue
				}
				at := put(t, s, definition.CRDPrefix+name+".example.com", crdTree("example.com", name, name), 0)
				if c, err := l.Wait(t.Context(), at); err != nil || c.Find("example.com", "v1", name) == nil {
					t.Errorf("%s is not served at %d: %v", name, at, err)
				}
			}
		})
	}
	g.Wait()
}
