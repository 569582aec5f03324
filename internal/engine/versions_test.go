package engine

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/object"
)

// TestEventsInTwoGroups checks that an Event is stored once and served in both of its API groups. The groups have
// different field names.
func TestEventsInTwoGroups(t *testing.T) {
	f := newFixture(t)
	core, events := f.target("", "v1", "events", "default"), f.target("events.k8s.io", "v1", "events", "default")
	f.mustCreate(core, `{"metadata":{"name":"e"},"involvedObject":{"kind":"Pod","name":"p","namespace":"default"},`+
		`"reason":"Started","message":"it runs","type":"Normal"}`)
	core.Name, events.Name = "e", "e"
	seen := f.get(events)
	equal(t, "read in the other group", []any{seen["apiVersion"], seen["kind"], seen["note"],
		valueAt(seen, "regarding.name"), seen["message"]},
		[]any{"events.k8s.io/v1", "Event", "it runs", "p", nil})
	watch := f.watch(events, read.ListOptions{ResourceVersion: f.head()})
	next := f.mustPatch(events, mergePatch, `{"metadata":{"labels":{"a":"b"}}}`)
	equal(t, "patched", []any{valueAt(next, "metadata.labels"), next["note"]},
		[]any{map[string]any{"a": "b"}, "it runs"})
	ev, err := watch.next()
	if err != nil {
		t.Fatal(err)
	}
	equal(t, "watched", treeOf(t, ev.Object), next)
	equal(t, "message", f.get(core)["message"], "it runs")
	events.Name, core.Name = "", ""
	equal(t, "listed in events.k8s.io", len(f.list(events,
		read.ListOptions{Fields: fieldSelector(t, "regarding.name=p")}).Items), 1)
	equal(t, "listed in the core group",
		len(f.list(core, read.ListOptions{Fields: fieldSelector(t, "involvedObject.name=p")}).Items), 1)
	_, err = f.List(f.ctx, events, read.ListOptions{Fields: fieldSelector(t, "involvedObject.name=p")})
	f.expectStatus(err, 400, metav1.StatusReasonBadRequest, "involvedObject.name")
}

// TestEventSourceSelector checks the field selector "source". If the Event has no source.component, it uses
// reportingComponent.
func TestEventSourceSelector(t *testing.T) {
	f := newFixture(t)
	core := f.target("", "v1", "events", "default")
	f.mustCreate(core, `{"metadata":{"name":"a"},"involvedObject":{"namespace":"default"},`+
		`"source":{"component":"old"},"reportingComponent":"new"}`)
	f.mustCreate(core, `{"metadata":{"name":"b"},"involvedObject":{"namespace":"default"},"reportingComponent":"new"}`)
	for selector, want := range map[string]string{"source=old": "a", "source=new": "b", "source!=new": "a",
		"reportingComponent=new,source!=old": "b"} {
		l := f.list(core, read.ListOptions{Fields: fieldSelector(t, selector)})
		if len(l.Items) != 1 || l.Items[0].Meta().Name != want {
			t.Errorf("%s: got %d objects, want only %s", selector, len(l.Items), want)
		}
	}
}

// TestReadUnderNewSchema checks that the first read of an object that was stored under another schema prunes it.
// All readers share the result (SCH-028).
func TestReadUnderNewSchema(t *testing.T) {
	f := newFixture(t)
	for i := range 3 {
		f.mustCreate(f.cron(""), fmt.Sprintf(`{"metadata":{"name":"c%d"},"spec":{"color":"red","image":"i"}}`, i))
	}
	before := f.Store.Head().Get(f.cron("c0").Version.Definition.Key("default", "c0"))
	narrow := strings.Replace(cronTabSchema, `"color":{"type":"string"},`, "", 1)
	f.writeCRD(cronTabs(narrow, narrow))
	first := f.list(f.cron(""), read.ListOptions{})
	for _, o := range first.Items {
		equal(t, "spec", treeOf(t, o)["spec"], map[string]any{"image": "i"})
	}
	second := f.list(f.cron(""), read.ListOptions{})
	if first.Items[0].Record != second.Items[0].Record {
		t.Fatal("the second reader pruned the object again")
	}
	equal(t, "selectable field that is pruned",
		len(f.list(f.cron(""), read.ListOptions{Fields: fieldSelector(t, "spec.color=")}).Items), 3)
	o := f.mustEdit(f.cron("c0"), func(object.Tree) {}) // the update changes nothing, but stores the pruned object
	if o.Record.Modified == before.Modified || strings.Contains(string(o.Record.Value), `"red"`) {
		t.Fatalf("got %s stored, want a pruned object", o.Record.Value)
	}
	again := f.mustEdit(f.cron("c0"), func(object.Tree) {})
	equal(t, "revision after a second update", again.Revision, o.Revision)
}
