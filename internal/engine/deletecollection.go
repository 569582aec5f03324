package engine

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/storage"
)

const (
	// collectionPage is how many objects are listed at a time where the caller sets no limit.
	collectionPage = 1000
	// collectionBatch is how many deletions share a commit.
	collectionBatch = 100
)

// DeleteCollection deletes what o selects and returns it as it was. What is gone by the
// time its turn comes does not matter; another failure ends it, with some objects deleted.
func (e *Engine) DeleteCollection(ctx context.Context, t Target, d metav1.DeleteOptions, o ListOptions, c Caller) (*List, error) {
	if err := validateDeleteOptions(&d); err != nil {
		return nil, err
	}
	warnOfOrphans(t, &d, c)
	batch := collectionBatch
	if t.Version.Definition.Behavior.RelatedWrites != nil {
		batch /= 3 // a Service goes with its addresses, and etcd takes 128 writes at a time
	}
	limited := o.Limit > 0
	if !limited {
		o.Limit = collectionPage
	}
	var all *List
	for {
		page, err := e.List(ctx, t, o)
		if err != nil {
			return nil, err
		}
		for items := page.Items; len(items) > 0; {
			n := min(len(items), batch)
			if err := e.deleteBatch(ctx, t, d, items[:n], c); err != nil {
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

// deleteBatch deletes some objects in one commit, or one by one where that fails.
func (e *Engine) deleteBatch(ctx context.Context, t Target, d metav1.DeleteOptions, items []Object, c Caller) error {
	r := admission.Request{Operation: admission.Delete, Version: t.Version, Target: t.Version, Resource: t.resource(), Namespace: t.Namespace, User: c.User}
	if !c.DryRun && d.Preconditions == nil && !e.Admission.Handles(&r) { // plugins are asked once about each
		done, err := e.deleteTogether(ctx, t, d, items, c)
		if done || err != nil {
			return err
		}
	}
	c.hideName = true
	for _, item := range items {
		one := t
		one.Namespace, one.Name = item.Meta().Namespace, item.Meta().Name
		if _, _, err := e.Delete(ctx, one, d, c); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// deleteTogether commits the deletion of all items, if none of them changes meanwhile or may not be deleted.
func (e *Engine) deleteTogether(ctx context.Context, t Target, d metav1.DeleteOptions, items []Object, c Caller) (done bool, err error) {
	writes := make([]storage.Write, 0, len(items))
	var guards []storage.Guard
	var marked []Object
	for _, item := range items {
		one := t
		one.Namespace, one.Name = item.Meta().Namespace, item.Meta().Name
		w, err := e.newDeletion(ctx, one, d, c)
		if err != nil {
			return false, err
		}
		defer w.endAttempt()
		switch err := w.attempt(commitStage); {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return false, nil
		}
		if !w.noop {
			writes, guards = append(append(writes, w.storageWrite()), w.related...), append(guards, w.guards...)
		}
		if w.deleteAfterMark {
			marked = append(marked, item)
		}
	}
	if len(writes) == 0 {
		return true, nil
	}
	if _, err := e.commit(ctx, writes, guards...); err != nil {
		if _, ok := asConflict(err); ok || errors.Is(err, storage.ErrNoSpace) || errors.Is(err, storage.ErrTooLarge) { // for some there may be room
			return false, nil
		}
		return false, storageError(err)
	}
	if len(marked) > 0 {
		return e.deleteTogether(ctx, t, d, marked, c)
	}
	return true, nil
}
