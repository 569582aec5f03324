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

// lagging is a world that hears of what another server commits only when it asks what is newest.
func lagging(t *testing.T) (w *world, log *storagetest.Log, elsewhere func(key string, tree object.Tree) int64) {
	t.Helper()
	log = storagetest.NewLog(1)
	log.Lazy = true
	other := log.Open()
	t.Cleanup(func() { _ = other.Close() })
	w = newWorldOn(t, log.Open())
	return w, log, func(key string, tree object.Tree) int64 {
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

func aConfigMap(name string) object.Tree {
	return object.Tree{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object.Tree{"name": name, "namespace": "default", "uid": name}}
}

// CRD-061: what has no resourceVersion is answered from the newest state there is, whoever has made it; "0" from what this
// server has seen. That something is not there is known only of the newest.
func TestNewest(t *testing.T) {
	w, _, elsewhere := lagging(t)
	key := func(name string) string { return "/registry/configmaps/default/" + name }
	for name, ask := range map[string]func(name string) error{
		"get": func(name string) error { _, err := w.Get(w.ctx, w.configMap(name), ""); return err },
		"list": func(name string) error {
			l, err := w.List(w.ctx, w.configMap(""), ListOptions{})
			if err == nil && (len(l.Items) == 0 || w.Store.Head().Get(key(name)) == nil) {
				err = errors.New("not listed")
			}
			return err
		},
		"watch": func(name string) error {
			_, err := w.Watch(w.ctx, w.configMap(""), ListOptions{})
			if err == nil && w.Store.Head().Get(key(name)) == nil {
				err = errors.New("it begins before")
			}
			return err
		},
		"update": func(name string) error {
			_, err := w.update(w.configMap(name), `{"metadata":{"name":"`+name+`"},"data":{"a":"b"}}`)
			return err
		},
		"patch": func(name string) error {
			_, err := w.patch(w.configMap(name), merging, `{"data":{"a":"b"}}`)
			return err
		},
		"delete": func(name string) error {
			_, _, err := w.Delete(w.ctx, w.configMap(name), metav1.DeleteOptions{}, w.caller)
			return err
		},
	} {
		elsewhere(key(name), aConfigMap(name))
		if _, err := w.Get(w.ctx, w.configMap(name), "0"); err == nil {
			t.Fatalf("%s: it has been seen already", name)
		}
		if err := ask(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// CRD-002: a kind that another server has stored is served once somebody asks for it.
func TestNewestCatalog(t *testing.T) {
	w, _, elsewhere := lagging(t)
	tree := decode(t, hostsCRD)
	elsewhere(resource.CRDPrefix+object.Name(tree), tree)
	if w.Live.Load().Definition("example.com", "hosts") != nil {
		t.Fatal("it is known already")
	}
	catalog, err := w.Catalog(w.ctx)
	if err != nil || catalog.Definition("example.com", "hosts") == nil {
		t.Errorf("it is not known, %v", err)
	}
}

// Where it cannot be found out what is newest, that is a 503.
func TestNewestUnavailable(t *testing.T) {
	w, log, _ := lagging(t)
	log.Away(true)
	const away = "the server's storage is unavailable"
	_, err := w.Get(w.ctx, w.configMap("a"), "")
	w.refused(err, 503, metav1.StatusReasonServiceUnavailable, away)
	_, err = w.List(w.ctx, w.configMap(""), ListOptions{})
	w.refused(err, 503, metav1.StatusReasonServiceUnavailable, away)
	_, err = w.Watch(w.ctx, w.configMap(""), ListOptions{})
	w.refused(err, 503, metav1.StatusReasonServiceUnavailable, away)
	_, err = w.patch(w.configMap("a"), merging, `{}`)
	w.refused(err, 503, metav1.StatusReasonServiceUnavailable, away)
	_, err = w.create(w.configMap(""), `{"metadata":{"name":"a"}}`)
	w.refused(err, 503, metav1.StatusReasonServiceUnavailable, away)
	if _, err := w.List(w.ctx, w.configMap(""), ListOptions{ResourceVersion: "0"}); err != nil {
		t.Errorf("what has been seen: %v", err)
	}
	log.Away(false)
	w.mustCreate(w.configMap(""), `{"metadata":{"name":"a"}}`)
}

// CRD-053: who is overtaken by what it has not heard of yet goes on from there, also where that is a deletion.
func TestOvertakenUnheard(t *testing.T) {
	w, _, elsewhere := lagging(t)
	w.mustCreate(w.configMap(""), `{"metadata":{"name":"a"}}`)
	elsewhere("/registry/configmaps/default/a", nil)
	_, err := w.patch(w.configMap("a"), merging, `{"data":{"a":"b"}}`)
	w.refused(err, 404, metav1.StatusReasonNotFound, "not found")
	w.mustCreate(w.configMap(""), `{"metadata":{"name":"c"}}`)
	changed := aConfigMap("c")
	changed["data"] = object.Tree{"their": "own"}
	elsewhere("/registry/configmaps/default/c", changed)
	equal(t, "data", w.mustPatch(w.configMap("c"), merging, `{"data":{"a":"b"}}`)["data"], object.Tree{"a": "b", "their": "own"})
	ended, end := context.WithCancel(w.ctx)
	end()
	if w.catchUp(ended, &storage.ConflictError{Revision: w.Store.Head().Revision() + 1}) == nil {
		t.Error("it goes on from before what it was overtaken by")
	}
	elsewhere("/registry/configmaps/default/b", aConfigMap("b"))
	if _, err := w.create(w.configMap(""), `{"metadata":{"name":"b"}}`); err == nil {
		t.Error("created over another")
	} else {
		w.refused(err, 409, metav1.StatusReasonAlreadyExists, "already exists")
	}
}
