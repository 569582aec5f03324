package engine

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// addFinalizer adds a finalizer to the CronTab "a" as another writer.
func (f *fixture) addFinalizer(storage.Write) {
	f.mustPatch(f.cron("a"), mergePatch, `{"metadata":{"finalizers":["example.com/x"]}}`)
}

// deleteVerbs delete the CronTab "a", either by its name or with all CronTabs.
var deleteVerbs = []verbCase{
	{name: "delete", do: func(f *fixture, at verb.Target) error {
		_, _, err := f.Delete(f.ctx, at, metav1.DeleteOptions{}, f.caller)
		return err
	}},
	{name: "delete collection", do: func(f *fixture, at verb.Target) error {
		at.Name = ""
		_, err := f.DeleteCollection(f.ctx, at, metav1.DeleteOptions{}, read.ListOptions{}, f.caller)
		return err
	}},
}

// TestDeleteConflict checks that a deletion uses the finalizers that the object has at the commit (SUB-035,
// CRD-065).
func TestDeleteConflict(t *testing.T) {
	for _, v := range deleteVerbs {
		t.Run(v.name, func(t *testing.T) {
			f := newRaceFixture(t, true)
			f.mustCreate(f.cron(""), `{"metadata":{"name":"b"}}`)
			f.raceBeforeCommit(f.addFinalizer)
			if err := v.do(f, f.cron("a")); err != nil {
				t.Fatal(err)
			}
			got := f.get(f.cron("a"))
			if object.DeletionTimestamp(got) == "" || len(object.Finalizers(got)) != 1 {
				t.Errorf("got %v, want a deletionTimestamp and one finalizer", got)
			}
			if _, err := f.Get(f.ctx, f.cron("b"), ""); (err == nil) != (v.name == "delete") {
				t.Errorf("get of b: %v", err)
			}

			f = newRaceFixture(t, true) // another writer removes the finalizer before the commit
			f.addFinalizer(storage.Write{})
			f.raceBeforeCommit(func(storage.Write) {
				f.mustPatch(f.cron("a"), mergePatch,
					`{"metadata":{"finalizers":null}}`)
			})
			if err := v.do(f, f.cron("a")); err != nil {
				t.Fatal(err)
			}
			equal(t, "stored", f.countStored(), 0)
		})
	}
	f := newRaceFixture(t, true)
	f.raceBeforeCommit(func(storage.Write) { f.removeKey(aKey) })
	f.expectStatus(deleteVerbs[0].do(f, f.cron("a")), 404, metav1.StatusReasonNotFound,
		`crontabs.stable.example.com "a" not found`)
	f = newRaceFixture(t, true)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"b"}}`)
	f.raceBeforeCommit(func(storage.Write) { f.removeKey(aKey) })
	if err := deleteVerbs[1].do(f, f.cron("a")); err != nil {
		t.Error(err)
	}
	equal(t, "stored", f.countStored(), 0)
}

// TestDeletePreconditionsConflict checks that the preconditions of a deletion apply to the object at the commit
// (CRD-065).
func TestDeletePreconditionsConflict(t *testing.T) {
	f := newRaceFixture(t, true)
	read := f.get(f.cron("a"))
	uid, revision := object.UID(read), object.ResourceVersion(read)
	for _, c := range []struct {
		other func(storage.Write)
		pre   metav1.Preconditions
		text  string
	}{
		{f.annotate, metav1.Preconditions{ResourceVersion: &revision},
			"the ResourceVersion in the precondition (" + revision + ") does not match"},
		{f.recreate, metav1.Preconditions{UID: &uid}, "the UID in the precondition (" + string(uid) +
			") does not match"},
	} {
		r := f.raceBeforeCommit(c.other)
		_, _, err := f.Delete(f.ctx, f.cron("a"), metav1.DeleteOptions{Preconditions: &c.pre}, f.caller)
		f.expectStatus(err, 409, metav1.StatusReasonConflict, c.text)
		r.expectAttempts(1)
		got := f.get(f.cron("a"))
		equal(t, "annotation and deletionTimestamp", []any{valueAt(got, "metadata.annotations.other"),
			valueAt(got, "metadata.deletionTimestamp")}, []any{"yes", nil})
	}
}

// TestLastFinalizerConflict checks that the removal of the last finalizer deletes only the object that the write
// has read. It does not delete a newer object with the same name (SUB-043).
func TestLastFinalizerConflict(t *testing.T) {
	terminating := func() *fixture {
		f := newRaceFixture(t, true)
		f.addFinalizer(storage.Write{})
		f.delete(f.cron("a"), metav1.DeleteOptions{})
		return f
	}
	removeFinalizers := func(f *fixture) error {
		_, err := f.patch(f.cron("a"), mergePatch, `{"metadata":{"finalizers":null}}`)
		return err
	}
	f := terminating()
	r := f.raceBeforeCommit(f.annotate)
	if err := removeFinalizers(f); err != nil {
		t.Fatal(err)
	}
	r.expectAttempts(2)
	equal(t, "stored", f.countStored(), 0)

	f = terminating()
	f.raceBeforeCommit(f.recreate)
	if err := removeFinalizers(f); err != nil {
		t.Fatal(err)
	}
	equal(t, "replicas of the other object", valueAt(f.get(f.cron("a")), "spec.replicas"), 2)

	f = terminating()
	r = f.raceBeforeCommit(func(storage.Write) { f.removeKey(aKey) })
	if err := removeFinalizers(f); err != nil {
		t.Errorf("got %v, want success, because the object has already been deleted", err)
	}
	r.expectAttempts(1)

	f = terminating()
	f.caller.DryRun = true
	if err := removeFinalizers(f); err != nil {
		t.Fatal(err)
	}
	equal(t, "stored after a dry run", f.countStored(), 1)
}
