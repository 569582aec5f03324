package engine

import (
	"bytes"
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// review evaluates a review such as a TokenReview.
func (w *write) review() error {
	out, err := w.def.Behavior.Review(w.strategyContext(), w.desired)
	w.result = ObjectOf(w.v, 0, object.Pack(out, 0))
	return err
}

// convert packs the object at its storage version. It sets w.deleted if the update completes a deletion.
func (w *write) convert() (err error) {
	if w.createOnly && !w.caller.DryRun && w.sentVersion() != 0 {
		return unknownError("resourceVersion should not be set on objects to be created")
	}
	if c := w.def.Custom; c != nil {
		w.guards = append(w.guards, storage.Guard{Key: c.Key, Revision: c.Revision})
	}
	w.deleted = w.op == admission.Update && w.completesDeletion()
	delete(object.Metadata(w.obj), "selfLink") // neither clients nor servers set it since release 1.20
	w.packed, err = w.rules.pack(w)
	return err
}

// sentVersion returns the resourceVersion that the client sent with a new object.
func (w *write) sentVersion() uint64 {
	revision, err := strconv.ParseUint(object.ResourceVersion(w.obj), 10, 64)
	if err != nil {
		return 0
	}
	return revision
}

// completesDeletion reports whether an update completes the deletion of the object: the deletion has started, and
// nothing delays it any longer.
func (w *write) completesDeletion() bool {
	if len(object.Finalizers(w.obj)) > 0 || !deletionStarted(w.old) || !immediate(w.old) {
		return false
	}
	deletable := w.def.Behavior.Deletable
	return deletable == nil || deletable(w.obj)
}

// commit stores the result of the earlier stages and sets w.result. The commit fails if a guard fails.
func (w *write) commit() (err error) {
	switch {
	case w.noop || !w.deleted && w.unchanged():
		w.result, err = w.reader.read(w.ctx, w.rec)
		return err
	case w.caller.DryRun:
		return w.respondDryRun()
	}
	events, err := w.engine.commit(w.ctx, append([]storage.Write{w.storageWrite()}, w.related...), w.guards...)
	if err != nil {
		return w.conflictError(err)
	}
	w.waitForCatalog()
	return w.respondCommitted(events[0])
}

// commit commits the writes together, unless an object that a guard names has changed. All writes of the engine use
// this function. After a write of an APIService it waits until the catalog includes the change.
func (e *Engine) commit(
	ctx context.Context, writes []storage.Write, guards ...storage.Guard,
) ([]*storage.Event, error) {
	if e.beforeCommit != nil {
		e.beforeCommit(writes)
	}
	events, err := e.Store.Commit(ctx, writes, guards...)
	if err == nil && strings.HasPrefix(writes[0].Key, resource.APIServicePrefix) {
		_, _ = e.Live.Wait(ctx, events[0].Revision) // a failure to wait does not undo the commit
	}
	return events, err
}

// storageWrite returns the write of the object for the store.
func (w *write) storageWrite() storage.Write {
	out := storage.Write{Key: w.key()}
	if w.rec != nil {
		out.Expected = w.rec.Modified
	}
	if w.deleted {
		return out
	}
	derived := newDerived(w.packed)
	if w.kind == opStore && !w.target.AsStored && w.reader.unchanged(w.packed) {
		derived.servedAs.Store(w.v)
	}
	out.Value, out.TTL, out.Derived = w.packed.JSON(), time.Duration(w.def.Behavior.TTL)*time.Second, derived
	return out
}

// name returns the name of the object being written.
func (w *write) name() string {
	if w.target.Name == "" {
		return object.Name(w.desired)
	}
	return w.target.Name
}

// conflictError maps a conflict on the object's key to the error or the success that the client gets. It returns
// other errors unchanged.
func (w *write) conflictError(err error) error {
	conflict, ok := asConflict(err)
	switch {
	case !ok || conflict.Guard || conflict.Key != w.key():
		return err
	case w.createOnly:
		return w.alreadyExists(conflict.Current)
	case w.deleted && w.kind == opStore && conflict.Current == nil:
		return w.respondDeleted(w.rec.Modified) // another writer has removed the object: success, as in upstream
	}
	return err
}

// alreadyExists returns the 409 for a name that an existing object has. rec is the record of that object.
func (w *write) alreadyExists(rec *storage.Record) error {
	gr := w.v.GroupResource()
	err := apierrors.NewAlreadyExists(gr, w.name())
	if object.String(object.Metadata(w.obj), "generateName") != "" {
		err = apierrors.NewGenerateNameConflict(gr, w.name(), 1)
	}
	if rec != nil && metaOf(rec).meta.DeletionTimestamp != "" {
		err.ErrStatus.Message = "object is being deleted: " + err.ErrStatus.Message
	}
	return err
}

// respondCommitted sets the result to the committed object.
func (w *write) respondCommitted(e *storage.Event) (err error) {
	if w.deleted {
		return w.respondDeleted(e.Revision)
	}
	w.result, err = w.reader.read(w.ctx, e.Record)
	return err
}

// respondDryRun sets the result of a dry run.
func (w *write) respondDryRun() error {
	var revision int64
	if w.rec != nil {
		revision = w.rec.Modified
	}
	if w.createOnly {
		revision = int64(min(w.sentVersion(), math.MaxInt64)) // as upstream, which returns the sent version
		if rec := w.head.Get(w.key()); rec != nil {
			return w.alreadyExists(rec)
		}
	}
	if w.deleted {
		return w.respondDeleted(revision)
	}
	return w.respondUnstored(revision)
}

// respondDeleted sets the result to the last state of a deleted object. For a delete request this is the stored
// state, which needs no conversion. For an update that completes a deletion it is the updated object.
func (w *write) respondDeleted(revision int64) error {
	if w.kind == opStore {
		return w.respondUnstored(w.rec.Modified)
	}
	w.result = Object{Version: w.v, Revision: revision, Record: w.rec}
	return nil
}

// respondUnstored sets the result to an object that is not stored.
func (w *write) respondUnstored(revision int64) error {
	recs := []*storage.Record{recordOf(w.packed)}
	if !w.reader.unchanged(w.packed) {
		var err error
		if recs, err = w.reader.convertAll(w.ctx, recs); err != nil {
			return err
		}
	}
	w.result = Object{Version: w.v, Revision: revision, Record: recs[0]}
	return nil
}

// waitForCatalog waits after a write of a CRD until the catalog includes it. The next request then uses the new
// definition.
func (w *write) waitForCatalog() {
	if w.def.Prefix == resource.CRDPrefix {
		_, _ = w.engine.Live.Current(w.ctx) // a failure to wait does not undo the commit
	}
}

// unchanged reports whether storing the object would change only the times in managedFields, or nothing. These
// times always have the same length, so objects of different lengths differ.
func (w *write) unchanged() bool {
	if w.rec == nil || w.kind != opStore || len(w.packed.JSON()) != len(w.rec.Value) {
		return false
	}
	p, stored := w.packed, packed(w.rec)
	if bytes.Equal(p.JSON(), stored.JSON()) {
		return true // even if the object was stored under another schema
	}
	if !sameAPIVersion(stored, p) ||
		stored.Fingerprint() != p.Fingerprint() && !bytes.Equal(object.Pack(w.old, 0).JSON(), stored.JSON()) {
		return false
	}
	for key, v := range w.obj {
		switch key {
		case "apiVersion", "kind", "metadata":
			continue
		}
		if !object.Equal(v, w.old[key]) {
			return false
		}
	}
	md, oldMeta := object.Metadata(w.obj), object.Metadata(w.old)
	entries, _ := md["managedFields"].([]any)
	former, _ := oldMeta["managedFields"].([]any)
	return len(w.obj) == len(w.old) && object.Generation(w.obj) == object.Generation(w.old) &&
		sameMetadata(md, oldMeta) && equalExceptTimes(entries, former)
}

// apiVersion returns the version at which an object is stored.
func apiVersion(rec *storage.Record) string {
	raw, _ := object.Field(rec.Value, "apiVersion")
	return strings.Trim(string(raw), `"`)
}

func sameAPIVersion(a, b object.Packed) bool {
	x, _ := object.Field(a.JSON(), "apiVersion")
	y, _ := object.Field(b.JSON(), "apiVersion")
	return bytes.Equal(x, y)
}

// equalExceptTimes reports whether two lists of managedFields are equal apart from the times of their entries.
func equalExceptTimes(a, b []any) bool {
	if len(a) != len(b) || len(a) == 0 {
		return false
	}
	for i := range a {
		x, _ := a[i].(object.Tree)
		y, _ := b[i].(object.Tree)
		if len(x) != len(y) {
			return false
		}
		for key, v := range x {
			if other, ok := y[key]; !ok || key != "time" && !object.Equal(v, other) {
				return false
			}
		}
	}
	return true
}
