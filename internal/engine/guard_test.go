package engine

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/storage"
)

// creators create CronTabs in a namespace until they are refused, while stop does its work.
func (w *world) creators(namespace string, stop func()) {
	w.caller.Warn = nil
	started := make(chan struct{}, 100)
	var all sync.WaitGroup
	target := w.cron("")
	target.Namespace = namespace
	for i := range 6 {
		all.Go(func() {
			for j := range 2000 { // more than anybody gets to, unless nothing refuses
				_, err := w.Create(w.ctx, target, w.body(target, fmt.Sprintf(`{"metadata":{"name":"c%d-%d"}}`, i, j)), w.caller)
				if err != nil {
					return
				}
				if j == 3 {
					started <- struct{}{}
				}
			}
		})
	}
	for range 6 {
		<-started
	}
	stop()
	all.Wait()
}

// youngest is the newest creation below a prefix.
func (w *world) youngest(prefix string) (revision int64) {
	for rec := range w.Store.Head().Walk(prefix, "") {
		revision = max(revision, rec.Created)
	}
	return revision
}

// CRD-031: once a namespace is terminating, nothing comes into it any more, however close the race.
func TestNoOrphansInNamespace(t *testing.T) {
	w := newWorld(t)
	w.mustCreate(w.at("", "v1", "namespaces", ""), `{"metadata":{"name":"n"}}`)
	ns := w.at("", "v1", "namespaces", "")
	ns.Name = "n"
	var marked Object
	w.creators("n", func() { marked, _ = w.delete(ns, metav1.DeleteOptions{}) })
	if last := w.youngest("/registry/stable.example.com/crontabs/n/"); last == 0 || last > marked.Revision {
		t.Fatalf("created at %d, terminating since %d", last, marked.Revision)
	}
}

// CRD-044: the same for a CRD.
func TestNoOrphansOfCRD(t *testing.T) {
	w := newWorld(t)
	var marked int64
	w.creators("default", func() {
		w.writeCRD(strings.Replace(cronTabs(cronTabSchema, cronTabSchema), `"type":"NamesAccepted"`, `"type":"Terminating","status":"True"},{"type":"NamesAccepted"`, 1))
		marked = w.Store.Head().Get(cronTabKey).Modified
	})
	if last := w.youngest("/registry/stable.example.com/crontabs/"); last == 0 || last > marked {
		t.Fatalf("created at %d, terminating since %d", last, marked)
	}
	w.commit(storage.Write{Key: cronTabKey, Expected: marked})
}
