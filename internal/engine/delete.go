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

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// Delete removes an object or starts its deletion. gone says that it is no longer stored; obj is
// then its last state, as it was stored.
func (e *Engine) Delete(ctx context.Context, t Target, o metav1.DeleteOptions, c Caller) (obj Object, gone bool, err error) {
	if err := validateDeleteOptions(&o); err != nil {
		return Object{}, false, err
	}
	if t.Subresource != "" {
		return Object{}, false, apierrors.NewMethodNotSupported(t.Version.GroupResource(), "delete")
	}
	if err := admission.Delete(t.Version.GroupResource(), t.Name); err != nil {
		return Object{}, false, err
	}
	w, err := e.begin(ctx, t, c)
	if err != nil {
		return Object{}, false, err
	}
	for {
		obj, gone, err = w.delete(ctx, &o)
		c, ok := overtaken(err)
		if !ok {
			return obj, gone, storageError(err)
		}
		if err := e.catchUp(ctx, c); err != nil {
			return Object{}, false, err
		}
	}
}

func validateDeleteOptions(o *metav1.DeleteOptions) error {
	if errs := metavalidation.ValidateDeleteOptions(o); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	return nil
}

// delete makes one attempt to delete the target.
func (w *writing) delete(ctx context.Context, o *metav1.DeleteOptions) (Object, bool, error) {
	rec := w.engine.Store.Head().Get(w.key())
	if rec == nil {
		return Object{}, false, apierrors.NewNotFound(w.v.GroupResource(), w.target.Name)
	}
	write, p, err := w.deletion(ctx, rec, o)
	if err != nil {
		return Object{}, false, err
	}
	if p != nil { // it will be shown: where that cannot be, nothing changes
		if _, err := w.reader.at(ctx, rec); err != nil {
			return Object{}, false, err
		}
	}
	switch gone := p == nil; {
	case write == nil: // nothing changes
		obj, err := w.result(rec)
		return obj, false, err
	case w.caller.DryRun && gone:
		return w.last(rec, rec.Modified), true, nil
	case w.caller.DryRun:
		obj, err := w.unstored(p, rec.Modified)
		return obj, false, err
	}
	events, err := w.engine.commit(ctx, []storage.Write{*write})
	if err != nil {
		return Object{}, false, err
	}
	w.settle(ctx)
	if p != nil {
		obj, err := w.result(events[0].Record)
		return obj, false, err
	}
	return w.last(rec, events[0].Revision), true, nil
}

// last is an object that is gone, as it was stored: no conversion is needed to say farewell.
func (w *writing) last(rec *storage.Record, revision int64) Object {
	return Object{Version: w.v, Revision: revision, Packed: object.Packed(rec.Value), Record: rec}
}

// deletion works out what a delete does to rec: nothing (no write), an update to p, or a removal (no p).
func (w *writing) deletion(ctx context.Context, rec *storage.Record, o *metav1.DeleteOptions) (*storage.Write, object.Packed, error) {
	meta := derive(rec).meta
	if err := w.checkDelete(rec, meta, o); err != nil {
		return nil, nil, err
	}
	b := &w.def.Behavior
	finalizers := w.finalizers(meta.Finalizers, o)
	if len(finalizers) == 0 && b.Deletable == nil && b.BeforeDelete == nil {
		return &storage.Write{Key: rec.Key, Expected: rec.Modified}, nil, nil
	}
	t, err := object.Packed(rec.Value).Tree(rec.Modified)
	if err != nil {
		return nil, nil, apierrors.NewInternalError(err)
	}
	object.SetFinalizers(t, finalizers)
	w.markDeleting(t)
	if b.BeforeDelete != nil {
		if err := b.BeforeDelete(ctx, t); err != nil {
			return nil, nil, err
		}
	}
	if len(object.Finalizers(t)) == 0 && (b.Deletable == nil || b.Deletable(t)) {
		return &storage.Write{Key: rec.Key, Expected: rec.Modified}, nil, nil
	}
	p := object.Pack(t, object.Packed(rec.Value).Fingerprint())
	if bytes.Equal(p, rec.Value) {
		return nil, p, nil
	}
	return &storage.Write{Key: rec.Key, Value: p, Expected: rec.Modified, TTL: w.ttl(), Derived: newDerived(p)}, p, nil
}

// checkDelete enforces the preconditions.
func (w *writing) checkDelete(rec *storage.Record, meta *object.Meta, o *metav1.DeleteOptions) error {
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
func (w *writing) markDeleting(t object.Tree) {
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
func (w *writing) finalizers(current []string, o *metav1.DeleteOptions) []string {
	if w.def.Behavior.TTL > 0 {
		return current // Events are never collected
	}
	orphan, foreground := propagation(current, o)
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

// propagation says what becomes of an object's dependents; with neither, they are deleted in the background.
func propagation(current []string, o *metav1.DeleteOptions) (orphan, foreground bool) {
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
	return false, false
}
