package write

import (
	"bytes"
	"context"
	"errors"
	"math"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/crd/definition"
	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/strategy"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource/catalog"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// review evaluates a review such as a TokenReview.
func (w *write) review() error {
	out, err := w.Def.Behavior.Review(w.StrategyContext(), w.Desired)
	w.result = record.NewObject(w.Version, 0, object.Pack(out, 0))
	return err
}

// convert packs the object at its storage version. It sets w.deleted if the update completes a deletion.
func (w *write) convert() (err error) {
	if w.CreateOnly && !w.Caller.DryRun && w.sentVersion() != 0 {
		return verb.Unknown(errors.New("resourceVersion should not be set on objects to be created"))
	}
	if crd, revision := w.Def.CRD(); crd != "" {
		w.guards = append(w.guards, storage.Guard{Key: crd, Revision: revision})
	}
	w.deleted = w.Op == admission.Update && w.completesDeletion()
	delete(object.Metadata(w.Obj), "selfLink") // neither clients nor servers set it since release 1.20
	if g := w.Def.Behavior.Guards; g != nil {
		w.guards = append(w.guards, g(w.Ctx, w.Obj)...)
	}
	return w.pack()
}

// pack encodes the object at its storage version.
func (w *write) pack() error {
	to := w.Def.Storage
	if w.Target.AsStored {
		to = w.Version
	}
	if w.Version.Schema == nil {
		w.packed = object.Pack(w.Obj, 0)
		return nil
	}
	t, err := w.At(w.Obj, to)
	if err == nil {
		w.packed, err = record.Pack(t, to)
	}
	return err
}

// sentVersion returns the resourceVersion that the client sent with a new object.
func (w *write) sentVersion() uint64 {
	revision, _ := parseVersion(object.ResourceVersion(w.Obj))
	return revision
}

// completesDeletion reports whether an update completes the deletion of the object: the deletion has started, and
// nothing delays it any longer.
func (w *write) completesDeletion() bool {
	if len(object.Finalizers(w.Obj)) > 0 || object.DeletionTimestamp(w.Old) == "" || !immediate(w.Old) {
		return false
	}
	deletable := w.Def.Behavior.Deletable
	return deletable == nil || deletable(w.Obj)
}

// commit stores the result of the earlier stages and sets w.result. The commit fails if a guard fails.
func (w *write) commit() (err error) {
	switch {
	case w.noop || !w.deleted && w.unchanged():
		w.result, err = w.View.Read(w.Ctx, w.Record)
		return err
	case w.Caller.DryRun:
		return w.respondDryRun()
	}
	w.compared = true
	events, err := w.writer.commit(w.Ctx, append([]storage.Write{w.storageWrite()}, w.related...), w.guards...)
	if err != nil {
		return w.conflictError(err)
	}
	w.waitForCatalog()
	return w.respondCommitted(events[0])
}

// commit commits the writes together, unless an object that a guard names has changed. All writes of the engine use
// this function. After a write of an APIService it waits until the catalog includes the change.
func (wr *Writer) commit(
	ctx context.Context, writes []storage.Write, guards ...storage.Guard,
) ([]*storage.Event, error) {
	events, err := wr.Store.Commit(ctx, writes, guards...)
	if err == nil && strings.HasPrefix(writes[0].Key, catalog.APIServicePrefix) {
		_, _ = wr.Live.Wait(ctx, events[0].Revision) // a failure to wait does not undo the commit
	}
	return events, err
}

// storageWrite returns the write of the object for the store.
func (w *write) storageWrite() storage.Write {
	out := storage.Write{Key: w.key()}
	if w.Record != nil {
		out.Expected = w.Record.Modified
	}
	if w.deleted {
		return out
	}
	out.Value, out.TTL = w.packed.JSON(), time.Duration(w.Def.Behavior.TTL)*time.Second
	out.Derived = w.View.Derived(w.packed, w.kind == opStore)
	return out
}

// name returns the name of the object being written.
func (w *write) name() string {
	if w.Target.Name == "" {
		return object.Name(w.Desired)
	}
	return w.Target.Name
}

// conflictError maps a conflict on the object's key to the error or the success that the client gets. It returns
// other errors unchanged.
func (w *write) conflictError(err error) error {
	conflict, ok := asConflict(err)
	switch {
	case !ok || conflict.Guard || conflict.Key != w.key():
		return err
	case w.CreateOnly:
		return w.alreadyExists(conflict.Current)
	case w.deleted && w.kind == opStore && conflict.Current == nil:
		return w.respondDeleted(w.Record.Modified) // another writer has removed the object: success, as in upstream
	}
	return err
}

// alreadyExists returns the 409 for a name that an existing object has. rec is the record of that object.
func (w *write) alreadyExists(rec *storage.Record) error {
	gr := w.Version.GroupResource()
	err := apierrors.NewAlreadyExists(gr, w.name())
	if object.String(object.Metadata(w.Obj), "generateName") != "" {
		err = apierrors.NewGenerateNameConflict(gr, w.name(), 1)
	}
	if rec != nil && record.MetadataOf(rec).Meta.DeletionTimestamp != "" {
		err.ErrStatus.Message = "object is being deleted: " + err.ErrStatus.Message
	}
	return err
}

// respondCommitted sets the result to the committed object.
func (w *write) respondCommitted(e *storage.Event) (err error) {
	if w.deleted {
		return w.respondDeleted(e.Revision)
	}
	w.result, err = w.View.Read(w.Ctx, e.Record)
	return err
}

// respondDryRun sets the result of a dry run.
func (w *write) respondDryRun() error {
	var revision int64
	if w.Record != nil {
		revision = w.Record.Modified
	}
	if w.CreateOnly {
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
		return w.respondUnstored(w.Record.Modified)
	}
	w.result = record.Object{Version: w.Version, Revision: revision, Record: w.Record}
	return nil
}

// respondUnstored sets the result to an object that is not stored.
func (w *write) respondUnstored(revision int64) error {
	recs := []*storage.Record{record.FromPacked(w.packed)}
	if !w.View.Unchanged(w.packed) {
		var err error
		if recs, err = w.View.ConvertAll(w.Ctx, recs); err != nil {
			return err
		}
	}
	w.result = record.Object{Version: w.Version, Revision: revision, Record: recs[0]}
	return nil
}

// waitForCatalog waits after a write of a CRD until the catalog includes it. The next request then uses the new
// definition.
func (w *write) waitForCatalog() {
	if w.Def.Prefix == definition.CRDPrefix {
		_, _ = w.writer.Live.Current(w.Ctx) // a failure to wait does not undo the commit
	}
}

// unchanged reports whether storing the object would change only the times in managedFields, or nothing. Then the
// write stores nothing and the resourceVersion stays. These times always have the same length, so objects of different
// lengths differ. If the schema has changed since the object was stored (its fingerprint differs), new defaults or
// pruning may have changed the object at its read. Then the write stores it.
func (w *write) unchanged() bool {
	if w.Record == nil || w.kind != opStore || len(w.packed.JSON()) != len(w.Record.Value) {
		return false
	}
	p, stored := w.packed, record.Packed(w.Record)
	if bytes.Equal(p.JSON(), stored.JSON()) {
		return true // even if the object was stored under another schema
	}
	if !bytes.Equal(apiVersion(stored.JSON()), apiVersion(p.JSON())) ||
		stored.Fingerprint() != p.Fingerprint() && !bytes.Equal(object.Pack(w.Old, 0).JSON(), stored.JSON()) {
		return false
	}
	md, oldMeta := object.Metadata(w.Obj), object.Metadata(w.Old)
	entries, _ := md["managedFields"].([]any)
	former, _ := oldMeta["managedFields"].([]any)
	return !strategy.GenerationChanged(w.Obj, w.Old, false) &&
		object.Generation(w.Obj) == object.Generation(w.Old) &&
		strategy.SameMetadata(md, oldMeta) && equalExceptTimes(entries, former)
}

// apiVersion returns the apiVersion of an encoded object, in quotes.
func apiVersion(js []byte) []byte {
	raw, _ := object.Field(js, "apiVersion")
	return raw
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
