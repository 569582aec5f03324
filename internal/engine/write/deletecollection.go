package write

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/engine/read"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/storage"
)

const (
	// collectionPage is the number of objects in a page of the list if the caller sets no limit.
	collectionPage = 1000
	// collectionBatch is the maximum number of objects that one commit deletes.
	collectionBatch = 100
)

// DeleteCollection deletes the objects that o selects and returns them as they were listed. It skips objects that
// no longer exist. Any other error ends the call, and objects may already have been deleted by then.
func (wr *Writer) DeleteCollection(
	ctx context.Context, t verb.Target, d metav1.DeleteOptions, o read.ListOptions, c verb.Caller,
) (*read.List, error) {
	if err := validateDeleteOptions(&d); err != nil {
		return nil, err
	}
	warnOfOrphans(t, &d, c)
	batch := collectionBatch
	if t.Version.Definition.Behavior.RelatedWrites != nil {
		batch /= 3 // the deletion of a Service also deletes its addresses, and etcd accepts 128 writes in a commit
	}
	limited := o.Limit > 0
	if !limited {
		o.Limit = collectionPage
	}
	var all *read.List
	for {
		page, err := wr.List(ctx, t, o)
		if err != nil {
			return nil, err
		}
		for items := page.Items; len(items) > 0; {
			n := min(len(items), batch)
			if err := wr.deleteBatch(ctx, t, d, items[:n], c); err != nil {
				return nil, err
			}
			items = items[n:]
		}
		if all == nil {
			all = page
		} else {
			all.Items = append(all.Items, page.Items...)
		}
		if limited {
			return all, nil
		}
		if page.Continue == "" {
			all.Continue, all.Remaining = "", nil
			return all, nil
		}
		o.Continue, o.ResourceVersion, o.ResourceVersionMatch = page.Continue, "", ""
	}
}

// deleteBatch deletes the items in one commit. If that fails, it deletes them one by one.
func (wr *Writer) deleteBatch(
	ctx context.Context, t verb.Target, d metav1.DeleteOptions, items []record.Object, c verb.Caller,
) error {
	r := admission.Request{
		Operation: admission.Delete,
		Version:   t.Version,
		Target:    t.Version,
		Resource:  resourceOf(t),
		Namespace: t.Namespace,
		User:      c.User,
	}
	// Plugins must see each deletion exactly once. Batches may be repeated, so they are used only if no plugin
	// handles the request.
	if !c.DryRun && d.Preconditions == nil && !wr.Admission.Handles(&r) {
		done, err := wr.deleteTogether(ctx, t, d, items, c)
		if done || err != nil {
			return err
		}
	}
	for _, item := range items {
		target := t
		target.Namespace, target.Name = item.Meta().Namespace, item.Meta().Name
		w, err := wr.newDeletion(ctx, target, d, c)
		if err != nil {
			return err
		}
		w.deletion.hideName = true
		if err := w.delete(); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// deleteTogether deletes all items in one commit. If one of the items has changed or must not be deleted, it
// deletes nothing, and done is false.
func (wr *Writer) deleteTogether(
	ctx context.Context, t verb.Target, d metav1.DeleteOptions, items []record.Object, c verb.Caller,
) (done bool, err error) {
	writes := make([]storage.Write, 0, len(items))
	var guards []storage.Guard
	var marked []record.Object
	for _, item := range items {
		target := t
		target.Namespace, target.Name = item.Meta().Namespace, item.Meta().Name
		w, err := wr.newDeletion(ctx, target, d, c)
		if err != nil {
			return false, err
		}
		defer w.end()
		switch err := w.attempt(commitStage); {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return false, nil
		}
		if !w.noop {
			writes = append(append(writes, w.storageWrite()), w.related...)
			guards = append(guards, w.guards...)
		}
		if w.deleteAfterMark {
			marked = append(marked, item)
		}
	}
	if len(writes) == 0 {
		return true, nil
	}
	if _, err := wr.commit(ctx, writes, guards...); err != nil {
		_, conflict := asConflict(err)
		// The commit of all items conflicts, needs too much space or is too large. Single deletions may still
		// succeed.
		if conflict || errors.Is(err, storage.ErrNoSpace) || errors.Is(err, storage.ErrTooLarge) {
			return false, nil
		}
		return false, verb.Status(err)
	}
	if len(marked) > 0 {
		return wr.deleteTogether(ctx, t, d, marked, c)
	}
	return true, nil
}
