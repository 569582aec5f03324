package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
)

// eventTimeout is the maximum time that a test waits for an event.
const eventTimeout = 10 * time.Second

// testWatch is a watch in a test. It buffers the events that the watch has returned until the test uses them.
type testWatch struct {
	*fixture
	*read.Watch
	seen []read.WatchEvent
}

func (f *fixture) watch(t verb.Target, o read.ListOptions) *testWatch {
	f.Helper()
	watch, err := f.Watch(f.ctx, t, o)
	if err != nil {
		f.Fatalf("watch: %v", err)
	}
	f.Cleanup(watch.Close)
	return &testWatch{fixture: f, Watch: watch}
}

// next waits for the next event and returns it.
func (w *testWatch) next() (read.WatchEvent, error) {
	w.Helper()
	for len(w.seen) == 0 {
		var err error
		if w.seen, err = w.Take(nil); err != nil {
			return read.WatchEvent{}, err
		}
		if len(w.seen) > 0 {
			break
		}
		select {
		case <-w.Ready():
		case <-w.Ended():
		case <-time.After(eventTimeout):
			w.Fatal("got no event")
		}
	}
	ev := w.seen[0]
	w.seen = w.seen[1:]
	return ev, nil
}

// expect checks the types and names of the next events. An element of want is a text such as "ADDED my-cron".
func (w *testWatch) expect(want ...string) {
	w.Helper()
	for _, line := range want {
		ev, err := w.next()
		if err != nil {
			w.Fatalf("want %s, got %v", line, err)
		}
		got := ev.Type
		if ev.Type != "BOOKMARK" {
			got += " " + ev.Object.Meta().Name
		} else if ev.InitialEventsEnd {
			got += " end"
		}
		if got != line {
			w.Fatalf("got %s, want %s", got, line)
		}
	}
}

// idle checks that no event is available.
func (w *testWatch) idle() {
	w.Helper()
	if more, err := w.Take(nil); err != nil || len(more)+len(w.seen) > 0 {
		w.Fatalf("got %v, %v", more, err)
	}
}

// head returns the store's revision as a resourceVersion.
func (f *fixture) head() string { return strconv.FormatInt(f.Store.Head().Revision(), 10) }

// TestWatch checks the events of a watch for a create, an update and a deletion (CRD-062).
func TestWatch(t *testing.T) {
	f := newFixture(t)
	from := f.head()
	f.mustCreate(f.cron(""), cronTab)
	watch := f.watch(f.cron(""), read.ListOptions{ResourceVersion: from})
	watch.expect("ADDED my-cron")
	o := f.mustEdit(f.cron("my-cron"), func(o object.Tree) { set(o, "spec.image", "b") })
	ev, err := watch.next()
	if err != nil || ev.Type != "MODIFIED" || ev.Object.Revision != o.Revision {
		t.Fatalf("%+v, %v", ev, err)
	}
	equal(t, "object", treeOf(t, ev.Object), treeOf(t, o))
	_, _ = f.delete(f.cron("my-cron"), metav1.DeleteOptions{})
	ev, err = watch.next()
	if err != nil || ev.Type != "DELETED" || ev.Object.Revision != f.newestRevision() {
		t.Fatalf("%+v, %v", ev, err)
	}
	equal(t, "deleted object", valueAt(treeOf(t, ev.Object), "spec.image"), "b")
	equal(t, "resourceVersion", object.ResourceVersion(treeOf(t, ev.Object)), strconv.FormatInt(f.newestRevision(), 10))
	watch.idle()
}

// TestInitialEvents checks the initial events of a watch and the bookmark at their end. It also checks the errors
// for invalid options (CRD-062, CRD-063).
func TestInitialEvents(t *testing.T) {
	f := newFixture(t)
	f.fillCronTabs(3)
	yes, no := true, false
	for _, rv := range []string{"", "0"} {
		f.watch(f.cron(""), read.ListOptions{ResourceVersion: rv}).expect("ADDED c000", "ADDED c001", "ADDED c002")
		f.watch(f.cron(""), read.ListOptions{ResourceVersion: rv, AllowWatchBookmarks: true}).expect("ADDED c000",
			"ADDED c001", "ADDED c002", "BOOKMARK end")
	}
	for _, rv := range []string{"", "0", f.head()} {
		o := read.ListOptions{ResourceVersion: rv, AllowWatchBookmarks: true, SendInitialEvents: &yes,
			ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, Labels: labelSelector(t, "shard=1")}
		f.watch(f.cron(""), o).expect("ADDED c001", "BOOKMARK end")
	}
	f.watch(f.cron(""), read.ListOptions{SendInitialEvents: &no,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}).idle()
	f.watch(f.cron(""), read.ListOptions{Fields: fieldSelector(t, "metadata.name=c002")}).expect("ADDED c002")
	_, err := f.Watch(f.ctx, f.cron(""), read.ListOptions{SendInitialEvents: &yes})
	f.expectStatus(err, 422, metav1.StatusReasonInvalid,
		"sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
	_, err = f.Watch(f.ctx, f.cron(""), read.ListOptions{ResourceVersion: "1", ResourceVersionMatch: "NotOlderThan"})
	f.expectStatus(err, 422, metav1.StatusReasonInvalid,
		"resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided")
	_, err = f.Watch(f.ctx, f.cron(""), read.ListOptions{ResourceVersion: "x"})
	f.expectStatus(err, 500, metav1.StatusReasonUnknown, "resourceVersion: Invalid value")
}

// TestManyInitialEvents checks initial events that need several batches (CRD-063).
func TestManyInitialEvents(t *testing.T) {
	f := newFixture(t)
	const n = 2*500 + 7
	for i := range n {
		f.mustCreate(f.cron(""), fmt.Sprintf(`{"metadata":{"name":"c%05d"}}`, i))
	}
	watch := f.watch(f.cron(""), read.ListOptions{AllowWatchBookmarks: true})
	for i := range n {
		watch.expect(fmt.Sprintf("ADDED c%05d", i))
	}
	watch.expect("BOOKMARK end")
	watch.idle()
	f.mustCreate(f.cron(""), cronTab)
	watch.expect("ADDED my-cron")
}

// TestWatchSelected checks the events of watches with selectors (CRD-062, CRD-067).
func TestWatchSelected(t *testing.T) {
	f := newFixture(t)
	watch := f.watch(f.cron(""), read.ListOptions{ResourceVersion: f.head(), Labels: labelSelector(t, "app=a")})
	fields := f.watch(
		f.cron(""),
		read.ListOptions{ResourceVersion: f.head(), Fields: fieldSelector(t, "spec.color=red")},
	)
	f.mustCreate(f.cron(""), cronTab)
	f.mustEdit(f.cron("my-cron"), func(o object.Tree) { set(o, "metadata.labels", object.Tree{"app": "a"}) })
	f.mustEdit(f.cron("my-cron"), func(o object.Tree) { set(o, "spec.color", "red") })
	f.mustEdit(f.cron("my-cron"), func(o object.Tree) { set(o, "metadata.labels", object.Tree{"app": "b"}) })
	watch.expect("ADDED my-cron", "MODIFIED my-cron")
	ev, err := watch.next()
	if err != nil || ev.Type != "DELETED" || ev.Object.Revision != f.newestRevision() {
		t.Fatalf("%+v, %v", ev, err)
	}
	equal(t, "labels of the object as it was", valueAt(treeOf(t, ev.Object), "metadata.labels"),
		map[string]any{"app": "a"})
	f.delete(f.cron("my-cron"), metav1.DeleteOptions{})
	watch.idle()
	fields.expect("ADDED my-cron", "MODIFIED my-cron", "DELETED my-cron")
}

// TestWatchCompacted checks that a watch of a compacted revision fails immediately (CRD-062).
func TestWatchCompacted(t *testing.T) {
	f := newFixture(t)
	f.fillCronTabs(3)
	oldest := f.Store.Head().Revision() // not computed, because the store may have other writers
	f.compact(oldest)
	watch := f.watch(f.cron(""), read.ListOptions{ResourceVersion: "1"})
	select {
	case <-watch.Ready():
	default:
		t.Error("the failed watch is not ready")
	}
	_, err := watch.next()
	f.expectStatus(err, 410, metav1.StatusReasonExpired, fmt.Sprintf("too old resource version: 1 (%d)", oldest))
}

// TestWatchFuture checks that a watch that starts at a future revision skips earlier events (CRD-062).
func TestWatchFuture(t *testing.T) {
	f := newFixture(t)
	future := f.Store.Head().Revision() + 2
	watch := f.watch(f.cron(""), read.ListOptions{ResourceVersion: strconv.FormatInt(future, 10)})
	f.fillCronTabs(4)
	later := f.eventsAfter(future) // c002 and c003 if the store's revisions have no gaps
	for _, e := range later {
		watch.expect("ADDED " + path.Base(e.Key))
	}
	if len(later) < 2 || len(later) > 4 {
		t.Errorf("got %d later events, want 2 to 4", len(later))
	}
	watch.idle()
}

// TestBookmarks checks that a bookmark is available only after the revision has changed since the last event or
// bookmark (CRD-063).
func TestBookmarks(t *testing.T) {
	f := newFixture(t)
	watch := f.watch(f.cron(""), read.ListOptions{ResourceVersion: f.head(), AllowWatchBookmarks: true})
	if ev, ok := watch.Bookmark(); ok {
		t.Fatalf("got bookmark %+v without a change", ev)
	}
	f.mustCreate(f.cron(""), cronTab)
	watch.expect("ADDED my-cron")
	f.mustCreate(f.configMap(""), `{"metadata":{"name":"elsewhere"}}`)
	f.eventsAfter(f.start) // waits until the store has published the events
	watch.idle()
	ev, ok := watch.Bookmark()
	equal(t, "bookmark", []any{ok, strconv.FormatInt(ev.Object.Revision, 10)}, []any{true, f.head()})
	if ev, ok := watch.Bookmark(); ok {
		t.Fatalf("got a second bookmark %+v without a change", ev)
	}
}

// TestWatchEndsWithSchemaGeneration checks that a change of the schema ends the watches of its objects. A change of
// the CRD's status does not end them (CRD-027, CRD-062).
func TestWatchEndsWithSchemaGeneration(t *testing.T) {
	f := newFixture(t)
	other := f.watch(f.configMap(""), read.ListOptions{ResourceVersion: f.head()})
	watch := f.watch(f.cron(""), read.ListOptions{ResourceVersion: f.head()})
	f.writeCRD(strings.Replace(cronTabs(cronTabSchema, cronTabSchema), `"storedVersions":["v1"]`,
		`"storedVersions":["v1","v2"]`, 1))
	f.mustCreate(f.cron(""), cronTab)
	watch.expect("ADDED my-cron")
	f.writeCRD(cronTabs(cronTabSchema, strings.Replace(cronTabSchema, "cronSpec", "cronText", 1)))
	if _, err := watch.next(); !errors.Is(err, io.EOF) {
		t.Fatalf("got %v, want io.EOF", err)
	}
	again := f.watch(f.cron(""), read.ListOptions{})
	again.expect("ADDED my-cron")
	again.idle()
	other.idle()
}

// TestWatchersAgreeWithLists makes random writes. It checks that a client that applies the events of a watch has
// the same state as a list (CRD-062).
func TestWatchersAgreeWithLists(t *testing.T) {
	f := newFixture(t)
	f.caller.Warn = nil
	selectors := []read.ListOptions{{}, {Labels: labelSelector(t, "app=a")}, {Labels: labelSelector(t, "app!=a")},
		{Fields: fieldSelector(t, "spec.color=red")}}
	var watches []*testWatch
	for i := range 8 {
		o := selectors[i%len(selectors)]
		if i >= len(selectors) {
			o.ResourceVersion = f.head()
		}
		watches = append(watches, f.watch(f.cron(""), o))
	}
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() { f.writeRandomly(rand.New(rand.NewSource(int64(i))), 150) })
	}
	writers.Wait()
	// Every selector matches an object before or after the last of these changes.
	f.mustCreate(f.cron(""), `{"metadata":{"name":"end","labels":{"app":"a"}},"spec":{"color":"red"}}`)
	marker := f.mustEdit(f.cron("end"), func(o object.Tree) { set(o, "metadata.labels", object.Tree{"app": "b"}) })
	for i, watch := range watches {
		watch.replay(t, f.list(f.cron(""), read.ListOptions{Labels: selectors[i%len(selectors)].Labels,
			Fields: selectors[i%len(selectors)].Fields}), marker)
	}
}

// writeRandomly creates, changes and deletes CronTabs at random.
func (f *fixture) writeRandomly(r *rand.Rand, n int) {
	for range n {
		name := fmt.Sprintf("c%d", r.Intn(12))
		app, color := string(rune('a'+r.Intn(2))), []string{"red", "blue"}[r.Intn(2)]
		tree := object.Tree{
			"apiVersion": "stable.example.com/v1", "kind": "CronTab",
			"metadata": object.Tree{"name": name, "labels": object.Tree{"app": app}},
			"spec":     object.Tree{"color": color},
		}
		switch r.Intn(4) {
		case 0:
			_, _, _ = f.Delete(context.Background(), f.cron(name), metav1.DeleteOptions{}, f.caller)
		case 1:
			_, _ = f.Create(context.Background(), f.cron(""), verb.Body{Tree: tree}, f.caller)
		default:
			data := fmt.Sprintf(`{"metadata":{"labels":{"app":%q}},"spec":{"color":%q}}`, app, color)
			_, _, _ = f.Patch(
				context.Background(),
				f.cron(name),
				verb.Patch{Type: mergePatch, Data: []byte(data)},
				f.caller,
			)
		}
	}
}

// replay applies the events of the watch up to the revision of marker. It compares the resulting state with the
// list l.
func (w *testWatch) replay(t *testing.T, l *read.List, marker record.Object) {
	t.Helper()
	known, last := map[string]int64{}, int64(0)
	for last < marker.Revision {
		ev, err := w.next()
		if err != nil {
			t.Fatal(err)
		}
		name := ev.Object.Meta().Name
		_, exists := known[name]
		if exists == (ev.Type == "ADDED") {
			t.Fatalf("got %s %s at revision %d, exists %v", ev.Type, name, ev.Object.Revision, exists)
		}
		if ev.Type == "DELETED" {
			delete(known, name)
		} else {
			known[name] = ev.Object.Revision
		}
		if name == "end" {
			last = ev.Object.Revision
		}
	}
	want := map[string]int64{}
	for _, o := range l.Items {
		want[o.Meta().Name] = o.Revision
	}
	equal(t, "state", known, want)
}
