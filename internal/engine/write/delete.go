package write

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Delete deletes an object or starts its deletion. If the object is no longer stored, deleted is true, and obj is
// its last stored state.
func (wr *Writer) Delete(
	ctx context.Context, t verb.Target, o metav1.DeleteOptions, c verb.Caller,
) (obj record.Object, deleted bool, err error) {
	w, err := wr.newDeletion(ctx, t, o, c)
	if err == nil {
		err = w.delete()
	}
	if err != nil {
		return record.Object{}, false, err
	}
	return w.result, w.deleted, nil
}

func (w *write) delete() error {
	warnOfOrphans(w.Target, &w.deletion.options, w.Caller)
	err := w.run()
	if err == nil && w.deleteAfterMark {
		err = w.deleteMarked()
	}
	return err
}

// deleteMarked deletes an object that has just been stored as marked for deletion. Upstream's store also makes
// these two writes, and watchers see both events.
func (w *write) deleteMarked() error {
	marked := w.result
	if w.Caller.DryRun {
		w.deleted = true
		return nil
	}
	if pre := w.deletion.options.Preconditions; pre != nil && pre.ResourceVersion != nil {
		w.deletion.options.Preconditions = &metav1.Preconditions{
			UID:             pre.UID,
			ResourceVersion: new(strconv.FormatInt(marked.Revision, 10)),
		}
	}
	w.wantUID = string(marked.Meta().UID)
	err := w.run()
	if apierrors.IsNotFound(err) { // another writer has removed the object: success, as in upstream
		w.result, w.deleted, err = marked, true, nil
	}
	return err
}

// warnOfOrphans adds upstream's warning if the kind's dependents are orphaned by default and the request specifies
// no propagation policy.
func warnOfOrphans(t verb.Target, o *metav1.DeleteOptions, c verb.Caller) {
	text := t.Version.Definition.Behavior.OrphanWarning
	if text != "" && c.Warn != nil && o.PropagationPolicy == nil && o.OrphanDependents == nil {
		c.Warn(text)
	}
}

func (wr *Writer) newDeletion(
	ctx context.Context, t verb.Target, o metav1.DeleteOptions, c verb.Caller,
) (*write, error) {
	if err := validateDeleteOptions(&o); err != nil {
		return nil, err
	}
	if t.Subresource != "" {
		return nil, apierrors.NewMethodNotSupported(t.Version.GroupResource(), "delete")
	}
	w, err := wr.newWrite(ctx, t, c, opDelete)
	if err == nil {
		w.deletion.options = o
	}
	return w, err
}

func validateDeleteOptions(o *metav1.DeleteOptions) error {
	if errs := metavalidation.ValidateDeleteOptions(o); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	return nil
}

// find looks up the object to delete and checks the preconditions. It does not decode the object. So even an object
// whose conversion fails can be deleted.
func (w *write) find() error {
	if err := w.findRecord(); err != nil {
		return err
	}
	if w.Record == nil || w.wantUID != "" && string(record.MetadataOf(w.Record).Meta.UID) != w.wantUID {
		return apierrors.NewNotFound(w.Version.GroupResource(), w.Target.Name)
	}
	return w.checkPreconditions(w.Record, record.MetadataOf(w.Record).Meta, &w.deletion.options)
}

// mark computes the state of the object after the deletion request. The object is either deleted, or stored with a
// mark for deletion.
func (w *write) mark() error {
	b := &w.Def.Behavior
	finalizers := w.finalizersOnDelete(record.MetadataOf(w.Record).Meta.Finalizers, &w.deletion.options)
	if len(finalizers) == 0 && b.Deletable == nil && b.BeforeDelete == nil && !w.supportsGrace() {
		w.deleted = true
		return nil
	}
	t, grace, err := w.markedObject(finalizers)
	if err != nil || w.noop {
		return err
	}
	if grace == nil {
		w.markDeleting(t)
	}
	if b.BeforeDelete != nil {
		if err := b.BeforeDelete(w.Ctx, t); err != nil {
			return err
		}
	}
	if (grace == nil || *grace == 0) && len(object.Finalizers(t)) == 0 && (b.Deletable == nil || b.Deletable(t)) {
		if w.deleted = grace == nil; w.deleted {
			return nil
		}
		w.deleteAfterMark = true
	}
	w.packed = object.Pack(t, record.Packed(w.Record).Fingerprint())
	w.noop = bytes.Equal(w.packed.JSON(), w.Record.Value)
	// The response contains the object. If the object cannot be read, the request fails before it changes anything.
	_, err = w.View.Read(w.Ctx, w.Record)
	return err
}

// markedObject returns the stored object with the finalizers of a deletion, and its grace period. grace is nil if
// the deletion is immediate. If the object's deletion has already started, markedObject sets w.noop and keeps the
// finalizers.
func (w *write) markedObject(finalizers []string) (t object.Tree, grace *int64, err error) {
	if !w.supportsGrace() {
		t, err := record.Packed(w.Record).Tree(w.Record.Modified)
		if b := &w.Def.Behavior; err == nil && b.Deletable != nil {
			w.noop = object.DeletionTimestamp(t) != "" && !b.Deletable(t)
		}
		object.SetFinalizers(t, finalizers)
		return t, nil, verb.Status(err)
	}
	obj := w.modified
	if obj == nil {
		if obj, err = w.liveInternal(); err != nil {
			return nil, nil, err
		}
	}
	o := w.deletion.options.DeepCopy()
	graceful, pending, err := rest.BeforeDelete(w.Def.Strategy.Main, w.StrategyContext(), obj, o)
	if err != nil || pending && w.modified == nil {
		w.noop = pending
		return nil, nil, err
	}
	if graceful || pending {
		grace = o.GracePeriodSeconds
	}
	if !pending {
		obj.SetFinalizers(finalizers)
	}
	obj.SetResourceVersion("")
	t, err = w.Def.Storage.Type.FromInternal(obj)
	return t, grace, verb.Status(err)
}

// supportsGrace reports whether objects of the kind may be deleted gracefully.
func (w *write) supportsGrace() bool {
	if w.Def.Strategy == nil {
		return false
	}
	_, ok := w.Def.Strategy.Main.(rest.RESTGracefulDeleteStrategy)
	return ok
}

// checkPreconditions returns a conflict if the object does not meet the preconditions of the deletion.
func (w *write) checkPreconditions(rec *storage.Record, meta *object.Meta, o *metav1.DeleteOptions) error {
	pre := o.Preconditions
	if pre == nil {
		return nil
	}
	if pre.UID != nil && *pre.UID != meta.UID {
		return w.preconditionError("UID", string(*pre.UID), string(meta.UID), "deleted and then recreated")
	}
	if rv := strconv.FormatInt(rec.Modified, 10); pre.ResourceVersion != nil && *pre.ResourceVersion != rv {
		return w.preconditionError("ResourceVersion", *pre.ResourceVersion, rv, "modified")
	}
	return nil
}

// preconditionError returns the 409 for an unmet precondition. change names the probable cause, such as
// "modified".
func (w *write) preconditionError(field, wants, has, change string) error {
	if failed := w.Def.Behavior.PreconditionFailed; failed != "" {
		return apierrors.NewConflict(w.Version.GroupResource(), w.Target.Name, fmt.Errorf(
			"%s: %s in precondition: %s, %[2]s in object meta: %[4]s", failed, field, wants, has))
	}
	gr := schema.GroupResource{Group: w.Version.GroupVersion.Group, Resource: w.Def.Names.Kind}
	return apierrors.NewConflict(gr, w.Target.Name, fmt.Errorf(
		"the %s in the precondition (%s) does not match the %[1]s in record (%[3]s). The object might have been %[4]s",
		field, wants, has, change))
}

// markDeleting sets the deletion timestamp to the current time. If the object already has a deletion timestamp in
// the past, it stays unchanged.
func (w *write) markDeleting(t object.Tree) {
	md := object.EnsureMetadata(t)
	existing, err := time.Parse(time.RFC3339, object.DeletionTimestamp(t))
	if err != nil && object.Generation(t) > 0 {
		object.SetGeneration(t, object.Generation(t)+1)
	}
	if err != nil || existing.After(w.now) {
		md["deletionTimestamp"] = timestamp(w.now)
	}
	md["deletionGracePeriodSeconds"] = int64(0)
}

// finalizersOnDelete returns the object's finalizers after its deletion starts. It adds or removes the garbage
// collector's finalizers, depending on the options and the current finalizers.
func (w *write) finalizersOnDelete(current []string, o *metav1.DeleteOptions) []string {
	policy := rest.DeleteDependents
	if w.Def.Strategy != nil {
		if s, ok := w.Def.Strategy.Main.(rest.GarbageCollectionDeleteStrategy); ok {
			policy = s.DefaultGarbageCollectionPolicy(w.StrategyContext())
		}
	}
	if policy == rest.Unsupported {
		return current // for example Events, which are never garbage collected
	}
	orphan, foreground := propagation(current, o, policy == rest.OrphanDependents)
	if orphan == slices.Contains(current, metav1.FinalizerOrphanDependents) &&
		foreground == slices.Contains(current, metav1.FinalizerDeleteDependents) {
		return current
	}
	var out []string
	for _, f := range current {
		if f != metav1.FinalizerOrphanDependents && f != metav1.FinalizerDeleteDependents {
			out = append(out, f)
		}
	}
	if orphan {
		out = append(out, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		out = append(out, metav1.FinalizerDeleteDependents)
	}
	return out
}

// propagation returns the effective propagation policy. If both results are false, dependents are deleted in
// the background.
func propagation(current []string, o *metav1.DeleteOptions, orphanByDefault bool) (orphan, foreground bool) {
	if legacy := o.OrphanDependents; legacy != nil { // deprecated, but clients still send it
		return *legacy, false
	}
	if o.PropagationPolicy != nil {
		policy := *o.PropagationPolicy
		return policy == metav1.DeletePropagationOrphan, policy == metav1.DeletePropagationForeground
	}
	for _, f := range current {
		switch f {
		case metav1.FinalizerOrphanDependents:
			return true, false
		case metav1.FinalizerDeleteDependents:
			return false, true
		}
	}
	return orphanByDefault, false
}

// liveInternal returns the live object in the internal form.
func (w *write) liveInternal() (resource.Internal, error) {
	old, err := w.Def.Storage.Type.Load(w.Record.Value)
	if err != nil {
		return nil, verb.Status(err)
	}
	old.SetResourceVersion(strconv.FormatInt(w.Record.Modified, 10))
	return old, nil
}
