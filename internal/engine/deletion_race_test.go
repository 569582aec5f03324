package engine

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// held is another's write of a finalizer to a.
func (w *world) held(storage.Write) {
	w.mustPatch(w.cron("a"), merging, `{"metadata":{"finalizers":["example.com/x"]}}`)
}

// removals delete a, alone or with all others.
var removals = []verb{
	{name: "delete", do: func(w *world, at Target) error {
		_, _, err := w.Delete(w.ctx, at, metav1.DeleteOptions{}, w.caller)
		return err
	}},
	{name: "delete collection", do: func(w *world, at Target) error {
		at.Name = ""
		_, err := w.DeleteCollection(w.ctx, at, metav1.DeleteOptions{}, ListOptions{}, w.caller)
		return err
	}},
}

// SUB-035 CRD-065: a deletion goes by the finalizers that there are at the moment of its commit.
func TestDeleteOvertaken(t *testing.T) {
	for _, v := range removals {
		t.Run(v.name, func(t *testing.T) {
			w := newRace(t, true)
			w.mustCreate(w.cron(""), `{"metadata":{"name":"b"}}`)
			w.before(w.held)
			if err := v.do(w, w.cron("a")); err != nil {
				t.Fatal(err)
			}
			got := w.get(w.cron("a"))
			if object.DeletionTimestamp(got) == "" || len(object.Finalizers(got)) != 1 {
				t.Errorf("%v", got)
			}
			if _, err := w.Get(w.ctx, w.cron("b"), ""); (err == nil) != (v.name == "delete") {
				t.Errorf("the other: %v", err)
			}

			w = newRace(t, true) // what is there has a finalizer, and then has none
			w.held(storage.Write{})
			w.before(func(storage.Write) { w.mustPatch(w.cron("a"), merging, `{"metadata":{"finalizers":null}}`) })
			if err := v.do(w, w.cron("a")); err != nil {
				t.Fatal(err)
			}
			equal(t, "stored", w.stored(), 0)
		})
	}
	w := newRace(t, true)
	w.before(func(storage.Write) { w.remove(aKey) })
	w.refused(removals[0].do(w, w.cron("a")), 404, metav1.StatusReasonNotFound, `crontabs.stable.example.com "a" not found`)
	w = newRace(t, true)
	w.mustCreate(w.cron(""), `{"metadata":{"name":"b"}}`)
	w.before(func(storage.Write) { w.remove(aKey) })
	if err := removals[1].do(w, w.cron("a")); err != nil {
		t.Error(err)
	}
	equal(t, "stored", w.stored(), 0)
}

// CRD-065: preconditions of a deletion are those of its commit.
func TestDeletePreconditionsOvertaken(t *testing.T) {
	w := newRace(t, true)
	read := w.get(w.cron("a"))
	uid, revision := object.UID(read), object.ResourceVersion(read)
	for _, c := range []struct {
		other func(storage.Write)
		pre   metav1.Preconditions
		text  string
	}{
		{w.annotated, metav1.Preconditions{ResourceVersion: &revision}, "the ResourceVersion in the precondition (" + revision + ") does not match"},
		{w.recreated, metav1.Preconditions{UID: &uid}, "the UID in the precondition (" + string(uid) + ") does not match"},
	} {
		r := w.before(c.other)
		_, _, err := w.Delete(w.ctx, w.cron("a"), metav1.DeleteOptions{Preconditions: &c.pre}, w.caller)
		w.refused(err, 409, metav1.StatusReasonConflict, c.text)
		r.tried(1)
		got := w.get(w.cron("a"))
		equal(t, "left by the other", []any{valueAt(got, "metadata.annotations.other"), valueAt(got, "metadata.deletionTimestamp")}, []any{"yes", nil})
	}
}

// SUB-043: who takes the last finalizer off removes the object that he saw, and no other of its name.
func TestLastFinalizerOvertaken(t *testing.T) {
	ending := func() *world {
		w := newRace(t, true)
		w.held(storage.Write{})
		w.delete(w.cron("a"), metav1.DeleteOptions{})
		return w
	}
	release := func(w *world) error {
		_, err := w.patch(w.cron("a"), merging, `{"metadata":{"finalizers":null}}`)
		return err
	}
	w := ending()
	r := w.before(w.annotated)
	if err := release(w); err != nil {
		t.Fatal(err)
	}
	r.tried(2)
	equal(t, "stored", w.stored(), 0)

	w = ending()
	w.before(w.recreated)
	if err := release(w); err != nil {
		t.Fatal(err)
	}
	equal(t, "left by the other", valueAt(w.get(w.cron("a")), "spec.replicas"), 2)

	w = ending()
	r = w.before(func(storage.Write) { w.remove(aKey) })
	if err := release(w); err != nil {
		t.Errorf("somebody else has removed it, which is success: %v", err)
	}
	r.tried(1)

	w = ending()
	w.caller.DryRun = true
	if err := release(w); err != nil {
		t.Fatal(err)
	}
	equal(t, "stored after a dry run", w.stored(), 1)
}
