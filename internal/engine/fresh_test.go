package engine

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// newLaggingFixture returns a fixture whose store receives the commits of another server only when it requests the
// newest revision. The function elsewhere commits a write on the other server. If tree is nil, it deletes the key.
func newLaggingFixture(t *testing.T) (f *fixture, log *storagetest.Log,
	elsewhere func(key string, tree object.Tree) int64) {
	t.Helper()
	log = storagetest.NewLog(1)
	log.NotifyOnRequest = true
	other := log.Open()
	t.Cleanup(func() { _ = other.Close() })
	f = newFixtureOn(t, log.Open())
	return f, log, func(key string, tree object.Tree) int64 {
		t.Helper()
		now, err := other.Fresh(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		write := storage.Write{Key: key}
		if rec := now.Get(key); rec != nil {
			write.Expected = rec.Modified
		}
		if tree != nil {
			write.Value = object.Pack(tree, 0).JSON()
		}
		events, err := other.Commit(t.Context(), []storage.Write{write})
		if err != nil {
			t.Fatal(err)
		}
		return events[0].Revision
	}
}

func configMapTree(name string) object.Tree {
	return object.Tree{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": object.Tree{"name": name, "namespace": "default", "uid": name}}
}

// TestReadsNewestState checks that a request without a resourceVersion uses the newest state, including writes of
// other servers. A request with resourceVersion "0" uses the state that this server has received. If the object is
// missing in it, the newest state is used (CRD-061).
func TestReadsNewestState(t *testing.T) {
	f, _, elsewhere := newLaggingFixture(t)
	key := func(name string) string { return "/registry/configmaps/default/" + name }
	for name, do := range map[string]func(name string) error{
		"get": func(name string) error { _, err := f.Get(f.ctx, f.configMap(name), ""); return err },
		"list": func(name string) error {
			l, err := f.List(f.ctx, f.configMap(""), read.ListOptions{})
			if err == nil && (len(l.Items) == 0 || f.Store.Head().Get(key(name)) == nil) {
				err = errors.New("not listed")
			}
			return err
		},
		"watch": func(name string) error {
			_, err := f.Watch(f.ctx, f.configMap(""), read.ListOptions{})
			if err == nil && f.Store.Head().Get(key(name)) == nil {
				err = errors.New("the watch starts at an older revision")
			}
			return err
		},
		"update": func(name string) error {
			_, err := f.update(f.configMap(name), `{"metadata":{"name":"`+name+`"},"data":{"a":"b"}}`)
			return err
		},
		"patch": func(name string) error {
			_, err := f.patch(f.configMap(name), mergePatch, `{"data":{"a":"b"}}`)
			return err
		},
		"delete": func(name string) error {
			_, _, err := f.Delete(f.ctx, f.configMap(name), metav1.DeleteOptions{}, f.caller)
			return err
		},
	} {
		elsewhere(key(name), configMapTree(name))
		if _, err := f.Get(f.ctx, f.configMap(name), "0"); err == nil {
			t.Fatalf("%s: the store has already seen the write", name)
		}
		if err := do(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestNewestCatalog checks that the result of Catalog includes a CRD that another server has stored (CRD-002).
func TestNewestCatalog(t *testing.T) {
	f, _, elsewhere := newLaggingFixture(t)
	tree := decode(t, hostsCRD)
	elsewhere(definition.CRDPrefix+object.Name(tree), tree)
	if f.Live.Load().Definition("example.com", "hosts") != nil {
		t.Fatal("the catalog already has the CRD")
	}
	catalog, err := f.Catalog(f.ctx)
	if err != nil || catalog.Definition("example.com", "hosts") == nil {
		t.Errorf("the catalog lacks the CRD, error %v", err)
	}
}

// TestNewestUnavailable checks that requests that need the newest state return 503 while the store is unavailable.
func TestNewestUnavailable(t *testing.T) {
	f, log, _ := newLaggingFixture(t)
	log.SetDisconnected(true)
	const unavailable = "the server's storage is unavailable"
	_, err := f.Get(f.ctx, f.configMap("a"), "")
	f.expectStatus(err, 503, metav1.StatusReasonServiceUnavailable, unavailable)
	_, err = f.List(f.ctx, f.configMap(""), read.ListOptions{})
	f.expectStatus(err, 503, metav1.StatusReasonServiceUnavailable, unavailable)
	_, err = f.Watch(f.ctx, f.configMap(""), read.ListOptions{})
	f.expectStatus(err, 503, metav1.StatusReasonServiceUnavailable, unavailable)
	_, err = f.patch(f.configMap("a"), mergePatch, `{}`)
	f.expectStatus(err, 503, metav1.StatusReasonServiceUnavailable, unavailable)
	_, err = f.create(f.configMap(""), `{"metadata":{"name":"a"}}`)
	f.expectStatus(err, 503, metav1.StatusReasonServiceUnavailable, unavailable)
	if _, err := f.List(f.ctx, f.configMap(""), read.ListOptions{ResourceVersion: "0"}); err != nil {
		t.Errorf("list at resourceVersion 0: %v", err)
	}
	log.SetDisconnected(false)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"}}`)
}

// TestConflictWithUnseenWrite checks a write that conflicts with a write of another server, before this server has
// received that write. The server retries its own write on the other server's result, which may be a deletion
// (CRD-053).
func TestConflictWithUnseenWrite(t *testing.T) {
	f, _, elsewhere := newLaggingFixture(t)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"}}`)
	elsewhere("/registry/configmaps/default/a", nil)
	_, err := f.patch(f.configMap("a"), mergePatch, `{"data":{"a":"b"}}`)
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, "not found")
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"c"}}`)
	changed := configMapTree("c")
	changed["data"] = object.Tree{"their": "own"}
	elsewhere("/registry/configmaps/default/c", changed)
	equal(t, "data", f.mustPatch(f.configMap("c"), mergePatch, `{"data":{"a":"b"}}`)["data"],
		object.Tree{"a": "b", "their": "own"})
	elsewhere("/registry/configmaps/default/b", configMapTree("b"))
	if _, err := f.create(f.configMap(""), `{"metadata":{"name":"b"}}`); err == nil {
		t.Error("the create replaced another object")
	} else {
		f.expectStatus(err, 409, metav1.StatusReasonAlreadyExists, "already exists")
	}
}

// TestWritesUseNewestState checks writes that do not reach a commit on the state that this server has received, while
// another server has already stored a newer one. The server does not reject them, and does not skip them as changing
// nothing.
func TestWritesUseNewestState(t *testing.T) {
	for name, do := range map[string]func(f *fixture, revision int64) error{
		"update": func(f *fixture, revision int64) error {
			_, err := f.update(f.configMap("a"),
				fmt.Sprintf(`{"metadata":{"name":"a","resourceVersion":"%d"},"data":{"a":"b"}}`, revision))
			return err
		},
		"patch without a change": func(f *fixture, _ int64) error {
			_, err := f.patch(f.configMap("a"), mergePatch, `{"data":{"a":"b"}}`)
			return err
		},
		"delete": func(f *fixture, revision int64) error {
			version := fmt.Sprint(revision)
			_, _, err := f.Delete(f.ctx, f.configMap("a"),
				metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}}, f.caller)
			return err
		},
	} {
		f, _, elsewhere := newLaggingFixture(t)
		f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"},"data":{"a":"b"}}`)
		changed := configMapTree("a")
		changed["data"] = object.Tree{"a": "their own"}
		if err := do(f, elsewhere("/registry/configmaps/default/a", changed)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		head, err := f.Store.Fresh(f.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if rec := head.Get("/registry/configmaps/default/a"); rec != nil &&
			!strings.Contains(string(rec.Value), `"a":"b"`) {
			t.Errorf("%s: stored %s", name, rec.Value)
		}
	}
	f, log, elsewhere := newLaggingFixture(t)
	elsewhere("/registry/namespaces/other", object.Tree{"apiVersion": "v1", "kind": "Namespace",
		"metadata": object.Tree{"name": "other", "uid": "other"}, "spec": object.Tree{"finalizers": []any{"kubernetes"}}})
	f.mustCreate(f.target("", "v1", "configmaps", "other"), `{"metadata":{"name":"a"}}`)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"},"data":{"a":"b"}}`)
	log.SetDisconnected(true)
	_, err := f.update(f.configMap("a"), `{"metadata":{"name":"a","resourceVersion":"1"}}`)
	f.expectStatus(err, 503, metav1.StatusReasonServiceUnavailable, "the server's storage is unavailable")
}
