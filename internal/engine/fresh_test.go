package engine

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
	"github.com/trellis-k8s/trellis/internal/storage/storagetest"
)

// newLaggingFixture is a world that hears of what another server commits only when it asks what is newest.
func newLaggingFixture(t *testing.T) (f *fixture, log *storagetest.Log, elsewhere func(key string, tree object.Tree) int64) {
	t.Helper()
	log = storagetest.NewLog(1)
	log.Lazy = true
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
	return object.Tree{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object.Tree{"name": name, "namespace": "default", "uid": name}}
}

// CRD-061: what has no resourceVersion is answered from the newest state there is, whoever has made it; "0" from what this
// server has seen. That something is not there is known only of the newest.
func TestReadsNewestState(t *testing.T) {
	f, _, elsewhere := newLaggingFixture(t)
	key := func(name string) string { return "/registry/configmaps/default/" + name }
	for name, ask := range map[string]func(name string) error{
		"get": func(name string) error { _, err := f.Get(f.ctx, f.configMap(name), ""); return err },
		"list": func(name string) error {
			l, err := f.List(f.ctx, f.configMap(""), ListOptions{})
			if err == nil && (len(l.Items) == 0 || f.Store.Head().Get(key(name)) == nil) {
				err = errors.New("not listed")
			}
			return err
		},
		"watch": func(name string) error {
			_, err := f.Watch(f.ctx, f.configMap(""), ListOptions{})
			if err == nil && f.Store.Head().Get(key(name)) == nil {
				err = errors.New("it begins before")
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
			t.Fatalf("%s: it has been seen already", name)
		}
		if err := ask(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// CRD-002: a kind that another server has stored is served once somebody asks for it.
func TestNewestCatalog(t *testing.T) {
	f, _, elsewhere := newLaggingFixture(t)
	tree := decode(t, hostsCRD)
	elsewhere(resource.CRDPrefix+object.Name(tree), tree)
	if f.Live.Load().Definition("example.com", "hosts") != nil {
		t.Fatal("it is known already")
	}
	catalog, err := f.Catalog(f.ctx)
	if err != nil || catalog.Definition("example.com", "hosts") == nil {
		t.Errorf("it is not known, %v", err)
	}
}

// Where it cannot be found out what is newest, that is a 503.
func TestNewestUnavailable(t *testing.T) {
	f, log, _ := newLaggingFixture(t)
	log.Away(true)
	const away = "the server's storage is unavailable"
	_, err := f.Get(f.ctx, f.configMap("a"), "")
	f.expectStatus(err, 503, metav1.StatusReasonServiceUnavailable, away)
	_, err = f.List(f.ctx, f.configMap(""), ListOptions{})
	f.expectStatus(err, 503, metav1.StatusReasonServiceUnavailable, away)
	_, err = f.Watch(f.ctx, f.configMap(""), ListOptions{})
	f.expectStatus(err, 503, metav1.StatusReasonServiceUnavailable, away)
	_, err = f.patch(f.configMap("a"), mergePatch, `{}`)
	f.expectStatus(err, 503, metav1.StatusReasonServiceUnavailable, away)
	_, err = f.create(f.configMap(""), `{"metadata":{"name":"a"}}`)
	f.expectStatus(err, 503, metav1.StatusReasonServiceUnavailable, away)
	if _, err := f.List(f.ctx, f.configMap(""), ListOptions{ResourceVersion: "0"}); err != nil {
		t.Errorf("what has been seen: %v", err)
	}
	log.Away(false)
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"a"}}`)
}

// CRD-053: who is overtaken by what it has not heard of yet goes on from there, also where that is a deletion.
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
	equal(t, "data", f.mustPatch(f.configMap("c"), mergePatch, `{"data":{"a":"b"}}`)["data"], object.Tree{"a": "b", "their": "own"})
	ended, end := context.WithCancel(f.ctx)
	end()
	if f.catchUp(ended, &storage.ConflictError{Revision: f.Store.Head().Revision() + 1}) == nil {
		t.Error("it goes on from before what it was overtaken by")
	}
	elsewhere("/registry/configmaps/default/b", configMapTree("b"))
	if _, err := f.create(f.configMap(""), `{"metadata":{"name":"b"}}`); err == nil {
		t.Error("created over another")
	} else {
		f.expectStatus(err, 409, metav1.StatusReasonAlreadyExists, "already exists")
	}
}
