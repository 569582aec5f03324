package engine

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Delete removes an object or starts its deletion. gone says that it is no longer stored; obj is
// then its last state, as it was stored.
func (e *Engine) Delete(ctx context.Context, t Target, o metav1.DeleteOptions, c Caller) (obj Object, gone bool, err error) {
	w, err := e.newDeletion(ctx, t, o, c)
	if err != nil {
		return Object{}, false, err
	}
	warnOfOrphans(t, &o, c)
	if err = w.run(); err == nil && w.deleteAfterMark {
		err = w.deleteMarked()
	}
	if err != nil {
		return Object{}, false, err
	}
	return w.result, w.deleted, nil
}

// deleteMarked removes what has been marked as going at once. Upstream's store also does the one after the other, and watchers see both.
func (w *write) deleteMarked() error {
	marked := w.result
	if w.caller.DryRun {
		w.deleted = true
		return nil
	}
	if pre := w.deleteOptions.Preconditions; pre != nil && pre.ResourceVersion != nil {
		w.deleteOptions.Preconditions = &metav1.Preconditions{UID: pre.UID, ResourceVersion: new(strconv.FormatInt(marked.Revision, 10))}
	}
	w.wantUID = string(marked.Meta().UID)
	err := w.run()
	if apierrors.IsNotFound(err) { // somebody else has removed it: as upstream, that is success
		w.result, w.deleted, err = marked, true, nil
	}
	return err
}

// warnOfOrphans tells who does not say what becomes of an object's dependents that they stay, if upstream does so for the kind.
func warnOfOrphans(t Target, o *metav1.DeleteOptions, c Caller) {
	if text := t.Version.Definition.Behavior.OrphanWarning; text != "" && c.Warn != nil && o.PropagationPolicy == nil && o.OrphanDependents == nil {
		c.Warn(text)
	}
}

func (e *Engine) newDeletion(ctx context.Context, t Target, o metav1.DeleteOptions, c Caller) (*write, error) {
	if err := validateDeleteOptions(&o); err != nil {
		return nil, err
	}
	if t.Subresource != "" {
		return nil, apierrors.NewMethodNotSupported(t.Version.GroupResource(), "delete")
	}
	w, err := e.newWrite(ctx, t, c, opDelete)
	if err == nil {
		w.deleteOptions = o
	}
	return w, err
}

func validateDeleteOptions(o *metav1.DeleteOptions) error {
	if errs := metavalidation.ValidateDeleteOptions(o); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	return nil
}

// find looks for what is to go, and compares it with what the caller knows. It is not decoded: what cannot be converted can go.
func (w *write) find() error {
	if err := w.findRecord(); err != nil {
		return err
	}
	if w.rec == nil || w.wantUID != "" && string(metaOf(w.rec).meta.UID) != w.wantUID {
		return apierrors.NewNotFound(w.v.GroupResource(), w.target.Name)
	}
	return w.checkPreconditions(w.rec, metaOf(w.rec).meta, &w.deleteOptions)
}

// mark works out what a deletion leaves of the object, as it is stored: nothing, or one that is marked as going.
func (w *write) mark() error {
	b := &w.def.Behavior
	finalizers := w.finalizersOnDelete(metaOf(w.rec).meta.Finalizers, &w.deleteOptions)
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
		if err := b.BeforeDelete(w.ctx, t); err != nil {
			return err
		}
	}
	if (grace == nil || *grace == 0) && len(object.Finalizers(t)) == 0 && (b.Deletable == nil || b.Deletable(t)) {
		if w.deleted = grace == nil; w.deleted {
			return nil
		}
		w.deleteAfterMark = true
	}
	w.packed = object.Pack(t, packed(w.rec).Fingerprint())
	w.noop = bytes.Equal(w.packed.JSON(), w.rec.Value)
	_, err = w.reader.read(w.ctx, w.rec) // it will be shown: where that cannot be, nothing changes
	return err
}

// markedObject is the stored object, marked as going with the time that it is given to end, which is nil where it has no graceful end.
// It sets untouched where an object is on its way out already; the finalizers of such a one stay as they are.
func (w *write) markedObject(finalizers []string) (t object.Tree, grace *int64, err error) {
	if !w.supportsGrace() {
		t, err := packed(w.rec).Tree(w.rec.Modified)
		if b := &w.def.Behavior; err == nil && b.Deletable != nil {
			w.noop = deletionStarted(t) && !b.Deletable(t)
		}
		object.SetFinalizers(t, finalizers)
		return t, nil, asInternalError(err)
	}
	obj := w.modified
	if obj == nil {
		if obj, err = w.liveInternal(); err != nil {
			return nil, nil, err
		}
	}
	o := w.deleteOptions.DeepCopy()
	graceful, pending, err := rest.BeforeDelete(w.def.Strategy.Main, w.strategyContext(), obj, o)
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
	t, err = w.def.Storage.Type.FromInternal(obj)
	return t, grace, asInternalError(err)
}

// supportsGrace reports that a delete may leave an object of the kind for a while.
func (w *write) supportsGrace() bool {
	if w.def.Strategy == nil {
		return false
	}
	_, ok := w.def.Strategy.Main.(rest.RESTGracefulDeleteStrategy)
	return ok
}

// checkPreconditions enforces the preconditions.
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

// preconditionError is the 409 of a precondition that the object does not meet.
func (w *write) preconditionError(what, wants, has, since string) error {
	if failed := w.def.Behavior.PreconditionFailed; failed != "" {
		return apierrors.NewConflict(w.v.GroupResource(), w.target.Name, fmt.Errorf("%s: %s in precondition: %s, %[2]s in object meta: %[4]s", failed, what, wants, has))
	}
	gr := schema.GroupResource{Group: w.v.GroupVersion.Group, Resource: w.def.Names.Kind}
	return apierrors.NewConflict(gr, w.target.Name, fmt.Errorf(
		"the %s in the precondition (%s) does not match the %[1]s in record (%[3]s). The object might have been %[4]s", what, wants, has, since))
}

// markDeleting sets what says that an object is to go. On one that says so already it changes nothing, but
// that a time in the future becomes now.
func (w *write) markDeleting(t object.Tree) {
	md := object.EnsureMetadata(t)
	existing := optionalTime(md["deletionTimestamp"])
	if existing == nil && object.Generation(t) > 0 {
		object.SetGeneration(t, object.Generation(t)+1)
	}
	if existing == nil || existing.After(w.now) {
		md["deletionTimestamp"] = timestamp(w.now)
	}
	md["deletionGracePeriodSeconds"] = int64(0)
}

// finalizersOnDelete are the object's, with those of the garbage collector as the options and what
// is there already demand.
func (w *write) finalizersOnDelete(current []string, o *metav1.DeleteOptions) []string {
	policy := rest.DeleteDependents
	if s, ok := w.gcStrategy(); ok {
		policy = s.DefaultGarbageCollectionPolicy(w.strategyContext())
	}
	if policy == rest.Unsupported {
		return current // Events are never collected
	}
	orphan, foreground := propagation(current, o, policy == rest.OrphanDependents)
	if orphan == slices.Contains(current, metav1.FinalizerOrphanDependents) && foreground == slices.Contains(current, metav1.FinalizerDeleteDependents) {
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

// gcStrategy is that of a kind that has a rule of its own for its objects' dependents.
func (w *write) gcStrategy() (rest.GarbageCollectionDeleteStrategy, bool) {
	if w.def.Strategy == nil {
		return nil, false
	}
	s, ok := w.def.Strategy.Main.(rest.GarbageCollectionDeleteStrategy)
	return s, ok
}

// propagation says what becomes of an object's dependents; with neither, they are deleted in the background. orphans says
// what the kind does where nobody says it.
func propagation(current []string, o *metav1.DeleteOptions, orphans bool) (orphan, foreground bool) {
	if legacy := o.OrphanDependents; legacy != nil { // clients still send it
		return *legacy, false
	}
	if o.PropagationPolicy != nil {
		return *o.PropagationPolicy == metav1.DeletePropagationOrphan, *o.PropagationPolicy == metav1.DeletePropagationForeground
	}
	for _, f := range current {
		switch f {
		case metav1.FinalizerOrphanDependents:
			return true, false
		case metav1.FinalizerDeleteDependents:
			return false, true
		}
	}
	return orphans, false
}
