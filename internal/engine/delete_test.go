package engine

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// propagationPolicy returns delete options with a propagation policy.
func propagationPolicy(p metav1.DeletionPropagation) metav1.DeleteOptions {
	return metav1.DeleteOptions{PropagationPolicy: &p}
}

// TestDelete checks the result of a deletion, and the error for a second one (CRD-018, SUB-047).
func TestDelete(t *testing.T) {
	f := newFixture(t)
	created := treeOf(t, f.mustCreate(f.cron(""), cronTab))
	o, deleted := f.delete(f.cron("my-cron"), metav1.DeleteOptions{})
	if !deleted || o.Meta().UID != object.UID(created) || o.Revision != f.newestRevision() {
		t.Fatalf("got deleted %v, %+v at %d", deleted, o.Meta(), o.Revision)
	}
	_, _, err := f.Delete(f.ctx, f.cron("my-cron"), metav1.DeleteOptions{}, f.caller)
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, `crontabs.stable.example.com "my-cron" not found`)
}

// TestDeleteWithFinalizers checks that a deletion only marks an object that has finalizers. A second deletion
// changes nothing (SUB-035, SUB-038, SUB-040, SUB-042, SUB-046, SUB-047).
func TestDeleteWithFinalizers(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a","finalizers":["stable.example.com/finalizer"]}}`)
	f.now = f.now.Add(time.Minute)
	o, deleted := f.delete(f.cron("a"), metav1.DeleteOptions{})
	first := treeOf(t, o)
	equal(t, "deletion", []any{deleted, valueAt(first, "metadata.deletionTimestamp"),
		valueAt(first, "metadata.deletionGracePeriodSeconds"), valueAt(first, "metadata.generation")},
		[]any{false, "2026-05-06T07:09:09Z", 0, 2})
	f.now = f.now.Add(time.Minute)
	zero := int64(0)
	o, deleted = f.delete(f.cron("a"), metav1.DeleteOptions{GracePeriodSeconds: &zero})
	equal(t, "second delete", []any{deleted, treeOf(t, o)}, []any{false, first})
}

// TestDeletePreconditions checks the UID and resourceVersion preconditions of a deletion (CRD-065).
func TestDeletePreconditions(t *testing.T) {
	f := newFixture(t)
	created := treeOf(t, f.mustCreate(f.cron(""), cronTab))
	wrong, right, rv := types.UID("x"), object.UID(created), object.ResourceVersion(created)
	_, _, err := f.Delete(f.ctx, f.cron("my-cron"),
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}}, f.caller)
	f.expectStatus(err, 409, metav1.StatusReasonConflict,
		"the UID in the precondition (x) does not match the UID in record ("+string(right)+")")
	old := "1"
	_, _, err = f.Delete(f.ctx, f.cron("my-cron"),
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &old}}, f.caller)
	f.expectStatus(err, 409, metav1.StatusReasonConflict,
		"the ResourceVersion in the precondition (1) does not match the ResourceVersion in record ("+rv+")")
	if _, deleted := f.delete(f.cron("my-cron"),
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &right, ResourceVersion: &rv}}); !deleted {
		t.Fatal("the object was not deleted")
	}
}

// TestPropagation checks the finalizers that each propagation policy sets (CRD-065, CRD-066).
func TestPropagation(t *testing.T) {
	for _, c := range []struct {
		o    metav1.DeleteOptions
		has  string
		want any
	}{
		{propagationPolicy(metav1.DeletePropagationForeground), `["example.com/x","orphan"]`,
			[]string{"example.com/x", "foregroundDeletion"}},
		{propagationPolicy(metav1.DeletePropagationOrphan), `[]`, []string{"orphan"}},
		{propagationPolicy(metav1.DeletePropagationBackground), `["example.com/x","foregroundDeletion"]`,
			[]string{"example.com/x"}},
		{metav1.DeleteOptions{}, `["foregroundDeletion"]`, []string{"foregroundDeletion"}},
		{metav1.DeleteOptions{OrphanDependents: new(bool)}, `["orphan"]`, nil},
	} {
		f := newFixture(t)
		f.mustCreate(f.cron(""), `{"metadata":{"name":"a","finalizers":`+c.has+`}}`)
		o, deleted := f.delete(f.cron("a"), c.o)
		if deleted != (c.want == nil) {
			t.Fatalf("got deleted %v, want finalizers %v", deleted, c.want)
		}
		if !deleted {
			equal(t, "finalizers", valueAt(treeOf(t, o), "metadata.finalizers"), c.want)
		}
	}
}

// TestDeleteOptionsAreChecked checks the validation of delete options (CRD-065).
func TestDeleteOptionsAreChecked(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	both := propagationPolicy(metav1.DeletePropagationOrphan)
	both.OrphanDependents = new(bool)
	_, _, err := f.Delete(f.ctx, f.cron("my-cron"), both, f.caller)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "orphanDependents and deletionPropagation cannot be both set")
	_, _, err = f.Delete(f.ctx, f.cron("my-cron"), propagationPolicy("Sideways"), f.caller)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "propagationPolicy: Unsupported value")
	_, err = f.DeleteCollection(f.ctx, f.cron(""), propagationPolicy("Sideways"), read.ListOptions{}, f.caller)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "propagationPolicy: Unsupported value")
}

// TestDeleteDryRun checks that a dry run of a deletion returns its result and changes nothing (CRD-058, CRD-065).
func TestDeleteDryRun(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"kept","finalizers":["example.com/x"]}}`)
	f.caller.DryRun = true
	before := f.Store.Head().Revision()
	if _, deleted := f.delete(f.cron("my-cron"), metav1.DeleteOptions{}); !deleted {
		t.Fatal("the dry run does not report a deletion")
	}
	o, deleted := f.delete(f.cron("kept"), metav1.DeleteOptions{})
	if deleted || object.DeletionTimestamp(treeOf(t, o)) == "" {
		t.Fatalf("got deleted %v and deletionTimestamp %q, want only a mark", deleted,
			object.DeletionTimestamp(treeOf(t, o)))
	}
	all, err := f.DeleteCollection(f.ctx, f.cron(""), metav1.DeleteOptions{}, read.ListOptions{}, f.caller)
	if err != nil || len(all.Items) != 2 {
		t.Fatalf("got %v, %v; want 2 objects", all, err)
	}
	equal(t, "changes", len(f.eventsAfter(before)), 0)
}

// TestDeleteNamespaces checks that the namespace default cannot be deleted, and that other namespaces become
// Terminating (CRD-031).
func TestDeleteNamespaces(t *testing.T) {
	f := newFixture(t)
	ns := f.target("", "v1", "namespaces", "")
	ns.Name = "default"
	_, _, err := f.Delete(f.ctx, ns, metav1.DeleteOptions{}, f.caller)
	f.expectStatus(err, 403, metav1.StatusReasonForbidden,
		`namespaces "default" is forbidden: this namespace may not be deleted`)
	ns.Name = ""
	_, err = f.DeleteCollection(f.ctx, ns, metav1.DeleteOptions{}, read.ListOptions{}, f.caller)
	f.expectStatus(err, 403, metav1.StatusReasonForbidden,
		`namespaces "default" is forbidden: this namespace may not be deleted`)
	f.mustCreate(f.target("", "v1", "namespaces", ""), `{"metadata":{"name":"n"}}`)
	ns.Name = "n"
	o, deleted := f.delete(ns, metav1.DeleteOptions{})
	equal(t, "phase", []any{deleted, valueAt(treeOf(t, o), "status.phase")}, []any{false, "Terminating"})
}

// countingStore is a store that counts commits.
type countingStore struct {
	storage.Store
	commits int
}

func (c *countingStore) Commit(ctx context.Context, writes []storage.Write, guards ...storage.Guard) ([]*storage.Event,
	error) {
	c.commits++
	return c.Store.Commit(ctx, writes, guards...)
}

// TestDeleteCollectionBatches checks that DeleteCollection deletes several objects in one commit, unless an
// admission plugin handles deletions (CRD-065).
func TestDeleteCollectionBatches(t *testing.T) {
	for name, c := range map[string]struct {
		ignores        []admission.Operation
		calls, commits int
	}{
		"without plugins": {[]admission.Operation{admission.Delete}, 0, 1},
		"with a plugin":   {nil, 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.fillCronTabs(3)
			calls := 0
			f.Admission = admission.Plugins{&plugin{ignores: c.ignores,
				validate: func(context.Context, *admission.Request) error {
					calls++
					return nil
				}}}
			store := &countingStore{Store: f.Store}
			f.Store = store
			if _, err := f.DeleteCollection(f.ctx, f.cron(""), metav1.DeleteOptions{}, read.ListOptions{},
				f.caller); err != nil {
				t.Fatal(err)
			}
			if calls != c.calls || store.commits != c.commits {
				t.Errorf("got %d admission calls and %d commits, want %d and %d", calls, store.commits, c.calls,
					c.commits)
			}
		})
	}
}

// TestDeleteCollection checks the selectors, preconditions, propagation and results of DeleteCollection (CRD-065).
func TestDeleteCollection(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"a", "b", "c"} {
		f.mustCreate(f.cron(""), `{"metadata":{"name":"`+name+`","labels":{"app":"`+name+`"}}}`)
	}
	f.mustCreate(f.cron(""), `{"metadata":{"name":"d","finalizers":["example.com/x"]}}`)
	selector, err := labels.Parse("app in (a,b)")
	if err != nil {
		t.Fatal(err)
	}
	wrong := types.UID("x")
	_, err = f.DeleteCollection(f.ctx, f.cron(""),
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}}, read.ListOptions{}, f.caller)
	f.expectStatus(err, 409, metav1.StatusReasonConflict,
		"the UID in the precondition (x) does not match the UID in record")
	deleted, err := f.DeleteCollection(f.ctx, f.cron(""), metav1.DeleteOptions{}, read.ListOptions{Labels: selector},
		f.caller)
	if err != nil || len(deleted.Items) != 2 {
		t.Fatalf("got %v, %v; want 2 objects", deleted, err)
	}
	if _, err := f.DeleteCollection(f.ctx, f.cron(""), propagationPolicy(metav1.DeletePropagationOrphan),
		read.ListOptions{Fields: fields.OneTermEqualSelector("metadata.name", "c")}, f.caller); err != nil {
		t.Fatal(err)
	}
	equal(t, "finalizers", valueAt(f.get(f.cron("c")), "metadata.finalizers"), []string{"orphan"})
	equal(t, "not selected", valueAt(f.get(f.cron("d")), "metadata.deletionTimestamp"), nil)
	if _, err := f.DeleteCollection(f.ctx, f.cron(""), propagationPolicy(metav1.DeletePropagationBackground),
		read.ListOptions{}, f.caller); err != nil {
		t.Fatal(err)
	}
	left, err := f.List(f.ctx, f.cron(""), read.ListOptions{})
	if err != nil || len(left.Items) != 1 || left.Items[0].Meta().DeletionTimestamp == "" {
		t.Fatalf("got %v, %v; want 1 terminating object", left, err)
	}
}
