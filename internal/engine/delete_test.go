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
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

func propagationPolicy(p metav1.DeletionPropagation) metav1.DeleteOptions {
	return metav1.DeleteOptions{PropagationPolicy: &p}
}

// CRD-018, SUB-047
func TestDelete(t *testing.T) {
	f := newFixture(t)
	made := treeOf(t, f.mustCreate(f.cron(""), cronTab))
	o, gone := f.delete(f.cron("my-cron"), metav1.DeleteOptions{})
	if !gone || o.Meta().UID != object.UID(made) || o.Revision != f.newestRevision() {
		t.Fatalf("gone %v, %+v at %d", gone, o.Meta(), o.Revision)
	}
	_, _, err := f.Delete(f.ctx, f.cron("my-cron"), metav1.DeleteOptions{}, f.caller)
	f.expectStatus(err, 404, metav1.StatusReasonNotFound, `crontabs.stable.example.com "my-cron" not found`)
}

// SUB-035, SUB-038, SUB-040, SUB-042, SUB-046, SUB-047
func TestDeleteWithFinalizers(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"a","finalizers":["stable.example.com/finalizer"]}}`)
	f.now = f.now.Add(time.Minute)
	o, gone := f.delete(f.cron("a"), metav1.DeleteOptions{})
	first := treeOf(t, o)
	equal(t, "deletion", []any{gone, valueAt(first, "metadata.deletionTimestamp"), valueAt(first, "metadata.deletionGracePeriodSeconds"), valueAt(first, "metadata.generation")},
		[]any{false, "2026-05-06T07:09:09Z", 0, 2})
	f.now = f.now.Add(time.Minute)
	zero := int64(0)
	o, gone = f.delete(f.cron("a"), metav1.DeleteOptions{GracePeriodSeconds: &zero})
	equal(t, "second delete", []any{gone, treeOf(t, o)}, []any{false, first})
}

// CRD-065
func TestDeletePreconditions(t *testing.T) {
	f := newFixture(t)
	made := treeOf(t, f.mustCreate(f.cron(""), cronTab))
	wrong, right, rv := types.UID("x"), object.UID(made), object.ResourceVersion(made)
	_, _, err := f.Delete(f.ctx, f.cron("my-cron"), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}}, f.caller)
	f.expectStatus(err, 409, metav1.StatusReasonConflict, "the UID in the precondition (x) does not match the UID in record ("+string(right)+")")
	old := "1"
	_, _, err = f.Delete(f.ctx, f.cron("my-cron"), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &old}}, f.caller)
	f.expectStatus(err, 409, metav1.StatusReasonConflict, "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record ("+rv+")")
	if _, gone := f.delete(f.cron("my-cron"), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &right, ResourceVersion: &rv}}); !gone {
		t.Fatal("still there")
	}
}

// CRD-065, CRD-066
func TestPropagation(t *testing.T) {
	for _, c := range []struct {
		o    metav1.DeleteOptions
		has  string
		want any
	}{
		{propagationPolicy(metav1.DeletePropagationForeground), `["example.com/x","orphan"]`, []string{"example.com/x", "foregroundDeletion"}},
		{propagationPolicy(metav1.DeletePropagationOrphan), `[]`, []string{"orphan"}},
		{propagationPolicy(metav1.DeletePropagationBackground), `["example.com/x","foregroundDeletion"]`, []string{"example.com/x"}},
		{metav1.DeleteOptions{}, `["foregroundDeletion"]`, []string{"foregroundDeletion"}},
		{metav1.DeleteOptions{OrphanDependents: new(bool)}, `["orphan"]`, nil},
	} {
		f := newFixture(t)
		f.mustCreate(f.cron(""), `{"metadata":{"name":"a","finalizers":`+c.has+`}}`)
		o, gone := f.delete(f.cron("a"), c.o)
		if gone != (c.want == nil) {
			t.Fatalf("gone %v with %v", gone, c.want)
		}
		if !gone {
			equal(t, "finalizers", valueAt(treeOf(t, o), "metadata.finalizers"), c.want)
		}
	}
}

// CRD-065
func TestDeleteOptionsAreChecked(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	both := propagationPolicy(metav1.DeletePropagationOrphan)
	both.OrphanDependents = new(bool)
	_, _, err := f.Delete(f.ctx, f.cron("my-cron"), both, f.caller)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "orphanDependents and deletionPropagation cannot be both set")
	_, _, err = f.Delete(f.ctx, f.cron("my-cron"), propagationPolicy("Sideways"), f.caller)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "propagationPolicy: Unsupported value")
	_, err = f.DeleteCollection(f.ctx, f.cron(""), propagationPolicy("Sideways"), ListOptions{}, f.caller)
	f.expectStatus(err, 422, metav1.StatusReasonInvalid, "propagationPolicy: Unsupported value")
}

// CRD-058, CRD-065
func TestDeleteDryRun(t *testing.T) {
	f := newFixture(t)
	f.mustCreate(f.cron(""), cronTab)
	f.mustCreate(f.cron(""), `{"metadata":{"name":"kept","finalizers":["example.com/x"]}}`)
	f.caller.DryRun = true
	before := f.Store.Head().Revision()
	if _, gone := f.delete(f.cron("my-cron"), metav1.DeleteOptions{}); !gone {
		t.Fatal("the dry run says it would stay")
	}
	o, gone := f.delete(f.cron("kept"), metav1.DeleteOptions{})
	if gone || object.DeletionTimestamp(treeOf(t, o)) == "" {
		t.Fatalf("gone %v", gone)
	}
	all, err := f.DeleteCollection(f.ctx, f.cron(""), metav1.DeleteOptions{}, ListOptions{}, f.caller)
	if err != nil || len(all.Items) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	equal(t, "changes", len(f.eventsAfter(before)), 0)
}

// CRD-031
func TestDeleteNamespaces(t *testing.T) {
	f := newFixture(t)
	ns := f.target("", "v1", "namespaces", "")
	ns.Name = "default"
	_, _, err := f.Delete(f.ctx, ns, metav1.DeleteOptions{}, f.caller)
	f.expectStatus(err, 403, metav1.StatusReasonForbidden, `namespaces "default" is forbidden: this namespace may not be deleted`)
	ns.Name = ""
	_, err = f.DeleteCollection(f.ctx, ns, metav1.DeleteOptions{}, ListOptions{}, f.caller)
	f.expectStatus(err, 403, metav1.StatusReasonForbidden, `namespaces "default" is forbidden: this namespace may not be deleted`)
	f.mustCreate(f.target("", "v1", "namespaces", ""), `{"metadata":{"name":"n"}}`)
	ns.Name = "n"
	o, gone := f.delete(ns, metav1.DeleteOptions{})
	equal(t, "phase", []any{gone, valueAt(treeOf(t, o), "status.phase")}, []any{false, "Terminating"})
}

// countingStore is a store that counts commits.
type countingStore struct {
	storage.Store
	commits int
}

func (c *countingStore) Commit(ctx context.Context, writes []storage.Write, guards ...storage.Guard) ([]*storage.Event, error) {
	c.commits++
	return c.Store.Commit(ctx, writes, guards...)
}

// CRD-065: objects of a collection are deleted together, unless a plugin wants to hear of each deletion.
func TestDeleteCollectionBatches(t *testing.T) {
	for name, c := range map[string]struct {
		deaf           []admission.Operation
		asked, commits int
	}{
		"nobody listens":   {[]admission.Operation{admission.Delete}, 0, 1},
		"a plugin listens": {nil, 3, 3},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.fillCronTabs(3)
			asked := 0
			f.Admission = admission.Plugins{&plugin{ignores: c.deaf, validate: func(context.Context, *admission.Request) error {
				asked++
				return nil
			}}}
			store := &countingStore{Store: f.Store}
			f.Store = store
			if _, err := f.DeleteCollection(f.ctx, f.cron(""), metav1.DeleteOptions{}, ListOptions{}, f.caller); err != nil {
				t.Fatal(err)
			}
			if asked != c.asked || store.commits != c.commits {
				t.Errorf("asked %d times, %d commits; want %d and %d", asked, store.commits, c.asked, c.commits)
			}
		})
	}
}

// CRD-065
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
	_, err = f.DeleteCollection(f.ctx, f.cron(""), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}}, ListOptions{}, f.caller)
	f.expectStatus(err, 409, metav1.StatusReasonConflict, "the UID in the precondition (x) does not match the UID in record")
	deleted, err := f.DeleteCollection(f.ctx, f.cron(""), metav1.DeleteOptions{}, ListOptions{Labels: selector}, f.caller)
	if err != nil || len(deleted.Items) != 2 {
		t.Fatalf("%v, %v", deleted, err)
	}
	if _, err := f.DeleteCollection(f.ctx, f.cron(""), propagationPolicy(metav1.DeletePropagationOrphan), ListOptions{Fields: fields.OneTermEqualSelector("metadata.name", "c")}, f.caller); err != nil {
		t.Fatal(err)
	}
	equal(t, "finalizers", valueAt(f.get(f.cron("c")), "metadata.finalizers"), []string{"orphan"})
	equal(t, "not selected", valueAt(f.get(f.cron("d")), "metadata.deletionTimestamp"), nil)
	if _, err := f.DeleteCollection(f.ctx, f.cron(""), propagationPolicy(metav1.DeletePropagationBackground), ListOptions{}, f.caller); err != nil {
		t.Fatal(err)
	}
	left, err := f.List(f.ctx, f.cron(""), ListOptions{})
	if err != nil || len(left.Items) != 1 || left.Items[0].Meta().DeletionTimestamp == "" {
		t.Fatalf("%v, %v", left, err)
	}
}
