package engine

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/read"
)

// TestSelectInWatchAndDelete checks that a watch with a selector sends ADDED when an object starts to match, and
// DELETED when it no longer matches. DeleteCollection with a selector deletes the selected objects (PRN-021,
// PRN-030).
func TestSelectInWatchAndDelete(t *testing.T) {
	f := newFixture(t)
	f.fillCronTabs(6) // c000 and c003 are red
	watch := f.watch(
		f.cron(""),
		read.ListOptions{ResourceVersion: f.head(), Fields: fieldSelector(t, "spec.color=red")},
	)
	f.mustPatch(f.cron("c000"), mergePatch, `{"spec":{"color":"blue"}}`)
	f.mustPatch(f.cron("c001"), mergePatch, `{"spec":{"color":"red"}}`)
	f.mustPatch(f.cron("c001"), mergePatch, `{"spec":{"image":"i"}}`)
	f.mustPatch(f.cron("c002"), mergePatch, `{"spec":{"image":"i"}}`)
	f.delete(f.cron("c003"), metav1.DeleteOptions{})
	var seen []string
	for len(seen) < 4 {
		events, err := watch.Take(nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range events {
			seen = append(seen, fmt.Sprint(ev.Type, " ", ev.Object.Meta().Name, " ",
				valueAt(treeOf(t, ev.Object), "spec.color")))
		}
		if len(events) == 0 {
			<-watch.Ready()
		}
	}
	equal(t, "events", seen, []string{"DELETED c000 red", "ADDED c001 red", "MODIFIED c001 red", "DELETED c003 red"})
	if _, err := f.DeleteCollection(f.ctx, f.cron(""), metav1.DeleteOptions{},
		read.ListOptions{Fields: fieldSelector(t, "spec.color!=red")}, f.caller); err != nil {
		t.Fatal(err)
	}
	equal(t, "remaining objects", names(f.list(f.cron(""), read.ListOptions{})), []string{"c001"})
	_, err := f.Watch(f.ctx, f.cron(""), read.ListOptions{Fields: fieldSelector(t, "spec.nope=x")})
	f.expectStatus(err, 400, metav1.StatusReasonBadRequest, "field label not supported: spec.nope")
}
