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
	if err := w.run(); err != nil {
		return Object{}, false, err
	}
	return w.answer, w.goes, nil
}

func (e *Engine) newDeletion(ctx context.Context, t Target, o metav1.DeleteOptions, c Caller) (*write, error) {
	if err := validateDeleteOptions(&o); err != nil {
		return nil, err
	}
	if t.Subresource != "" {
		return nil, apierrors.NewMethodNotSupported(t.Version.GroupResource(), "delete")
	}
	w, err := e.newWrite(ctx, t, c, removes)
	if err == nil {
		w.removal = o
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
	if err := w.lookup(); err != nil {
		return err
	}
	if w.rec == nil {
		return apierrors.NewNotFound(w.v.GroupResource(), w.target.Name)
	}
	return w.checkDelete(w.rec, metaOf(w.rec).meta, &w.removal)
}

// mark works out what a deletion leaves of the object, as it is stored: nothing, or one that is marked as going.
func (w *write) mark() error {
	b := &w.def.Behavior
	finalizers := w.finalizers(metaOf(w.rec).meta.Finalizers, &w.removal)
	if len(finalizers) == 0 && b.Deletable == nil && b.BeforeDelete == nil && !w.graceful() {
		w.goes = true
		return nil
	}
	t, waits, err := w.ending()
	if err != nil || w.untouched {
		return err
	}
	object.SetFinalizers(t, finalizers)
	if !waits {
		w.markDeleting(t)
	}
	if b.BeforeDelete != nil {
		if err := b.BeforeDelete(w.ctx, t); err != nil {
			return err
		}
	}
	if !waits && len(object.Finalizers(t)) == 0 && (b.Deletable == nil || b.Deletable(t)) {
		w.goes = true
		return nil
	}
	w.packed = object.Pack(t, packed(w.rec).Fingerprint())
	w.untouched = bytes.Equal(w.packed.JSON(), w.rec.Value)
	_, err = w.reader.at(w.ctx, w.rec) // it will be shown: where that cannot be, nothing changes
	return err
}

// ending is the stored object, with the time that it is given to end if it has a graceful end; waits says that it has, and
// that it stays until that time is over. It sets untouched where an object is on its way out already.
func (w *write) ending() (t object.Tree, waits bool, err error) {
	if !w.graceful() {
		t, err := packed(w.rec).Tree(w.rec.Modified)
		return t, false, asInternal(err)
	}
	obj, err := w.loadStored()
	if err != nil {
		return nil, false, err
	}
	o := w.removal.DeepCopy()
	graceful, pending, err := rest.BeforeDelete(w.def.Strategy.Main, w.strategyContext(), obj, o)
	if err != nil || pending {
		w.untouched = pending
		return nil, pending, err
	}
	obj.SetResourceVersion("")
	t, err = w.def.Storage.Type.FromInternal(obj)
	return t, graceful && *o.GracePeriodSeconds > 0, asInternal(err)
}

// graceful reports that a delete may leave an object of the kind for a while.
func (w *write) graceful() bool {
	if w.def.Strategy == nil {
		return false
	}
	_, ok := w.def.Strategy.Main.(rest.RESTGracefulDeleteStrategy)
	return ok
}

// checkDelete enforces the preconditions.
func (w *write) checkDelete(rec *storage.Record, meta *object.Meta, o *metav1.DeleteOptions) error {
	pre := o.Preconditions
	if pre == nil {
		return nil
	}
	gr := schema.GroupResource{Group: w.v.GroupVersion.Group, Resource: w.def.Names.Kind}
	if pre.UID != nil && *pre.UID != meta.UID {
		return apierrors.NewConflict(gr, w.target.Name, fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *pre.UID, meta.UID))
	}
	if rv := strconv.FormatInt(rec.Modified, 10); pre.ResourceVersion != nil && *pre.ResourceVersion != rv {
		return apierrors.NewConflict(gr, w.target.Name, fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *pre.ResourceVersion, rv))
	}
	return nil
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

// finalizers are the object's, with those of the garbage collector as the options and what
// is there already demand.
func (w *write) finalizers(current []string, o *metav1.DeleteOptions) []string {
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
