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

// reply answers a question.
func (w *write) reply() error {
	out, err := w.def.Behavior.Review(w.strategyContext(), w.wanted)
	w.answer = ObjectOf(w.v, 0, object.Pack(out, 0))
	return err
}

// convert gives the object the form in which it is stored, and finds out whether it is stored at all.
func (w *write) convert() (err error) {
	if w.posts && !w.caller.DryRun && w.sentVersion() != 0 {
		return plain("resourceVersion should not be set on objects to be created")
	}
	if c := w.def.Custom; c != nil {
		w.guards = append(w.guards, storage.Guard{Key: c.Key, Revision: c.Revision})
	}
	w.goes = w.op == admission.Update && w.emptied()
	delete(object.Metadata(w.obj), "selfLink") // nobody has set it since release 1.20
	w.packed, err = w.rules.pack(w)
	return err
}

// sentVersion is the resourceVersion that a new object came with.
func (w *write) sentVersion() uint64 {
	revision, err := strconv.ParseUint(object.ResourceVersion(w.obj), 10, 64)
	if err != nil {
		return 0
	}
	return revision
}

// emptied reports that an update takes away the last thing that a deletion waits for.
func (w *write) emptied() bool {
	if len(object.Finalizers(w.obj)) > 0 || !deletionStarted(w.old) || !immediate(w.old) {
		return false
	}
	deletable := w.def.Behavior.Deletable
	return deletable == nil || deletable(w.obj)
}

// commit writes what the stages before it have made, under the guards that they have set, and answers.
func (w *write) commit() (err error) {
	switch {
	case w.untouched || !w.goes && w.unchanged():
		w.answer, err = w.reader.at(w.ctx, w.rec)
		return err
	case w.caller.DryRun:
		return w.pretend()
	}
	events, err := w.engine.commit(w.ctx, append([]storage.Write{w.stored()}, w.also...), w.guards...)
	if err != nil {
		return w.lost(err)
	}
	w.settle()
	return w.committed(events[0])
}

// commit stores what has been judged, unless something that it relies on has changed since. Every write goes through here.
func (e *Engine) commit(ctx context.Context, writes []storage.Write, guards ...storage.Guard) ([]*storage.Event, error) {
	if e.beforeCommit != nil {
		e.beforeCommit(writes)
	}
	events, err := e.Store.Commit(ctx, writes, guards...)
	if err == nil && strings.HasPrefix(writes[0].Key, resource.APIServicePrefix) {
		_, _ = e.Live.Wait(ctx, events[0].Revision) // who serves what is in force when this is answered, which it is in any case
	}
	return events, err
}

// stored is what is written.
func (w *write) stored() storage.Write {
	out := storage.Write{Key: w.key()}
	if w.rec != nil {
		out.Expected = w.rec.Modified
	}
	if w.goes {
		return out
	}
	known := newDerived(w.packed)
	if w.way == stores && !w.target.AsStored && w.reader.unchanged(w.packed) {
		known.passes.Store(w.v)
	}
	out.Value, out.TTL, out.Derived = w.packed.JSON(), time.Duration(w.def.Behavior.TTL)*time.Second, known
	return out
}

// name is that of the object written.
func (w *write) name() string {
	if w.target.Name == "" {
		return object.Name(w.wanted)
	}
	return w.target.Name
}

// lost says what it means that somebody else was quicker.
func (w *write) lost(err error) error {
	conflict, ok := overtaken(err)
	switch {
	case !ok || conflict.Guard || conflict.Key != w.key():
		return err
	case w.posts:
		return w.exists(conflict.Current)
	case w.goes && w.way == stores && conflict.Current == nil:
		return w.farewell(w.rec.Modified) // somebody else has removed it: as upstream, that is success
	}
	return err
}

// exists is the 409 for a name that is taken by rec.
func (w *write) exists(rec *storage.Record) error {
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

// committed answers with what has been written.
func (w *write) committed(e *storage.Event) (err error) {
	if w.goes {
		return w.farewell(e.Revision)
	}
	w.answer, err = w.reader.at(w.ctx, e.Record)
	return err
}

// pretend is the answer of a dry run.
func (w *write) pretend() error {
	var revision int64
	if w.rec != nil {
		revision = w.rec.Modified
	}
	if w.posts {
		revision = int64(min(w.sentVersion(), math.MaxInt64)) // as upstream, which shows what was sent
		if rec := w.head.Get(w.key()); rec != nil {
			return w.exists(rec)
		}
	}
	if w.goes {
		return w.farewell(revision)
	}
	return w.show(revision)
}

// farewell answers with the last state of an object that is gone. One that a delete has removed is shown as it was
// stored: no conversion is needed to say farewell.
func (w *write) farewell(revision int64) error {
	if w.way == stores {
		return w.show(w.rec.Modified)
	}
	w.answer = Object{Version: w.v, Revision: revision, Record: w.rec}
	return nil
}

// show answers with an object that is not stored.
func (w *write) show(revision int64) error {
	recs := []*storage.Record{recordOf(w.packed)}
	if !w.reader.unchanged(w.packed) {
		var err error
		if recs, err = w.reader.make(w.ctx, recs); err != nil {
			return err
		}
	}
	w.answer = Object{Version: w.v, Revision: revision, Record: recs[0]}
	return nil
}

// settle waits, after a write of a CRD, until the catalog knows of it: the next request shall go by it.
func (w *write) settle() {
	if w.def.Prefix == resource.CRDPrefix {
		_, _ = w.engine.Live.Current(w.ctx) // stored it is, whether or not the caller waits
	}
}

// unchanged reports whether the live object is what would be stored. The times in managedFields do not count; those of
// old are as long as the new ones.
func (w *write) unchanged() bool {
	if w.rec == nil || w.way != stores || len(w.packed.JSON()) != len(w.rec.Value) {
		return false
	}
	p, stored := w.packed, packed(w.rec)
	if bytes.Equal(p.JSON(), stored.JSON()) {
		return true // though it may have been stored under another schema
	}
	if !sameAPIVersion(stored, p) || stored.Fingerprint() != p.Fingerprint() && !bytes.Equal(object.Pack(w.old, 0).JSON(), stored.JSON()) {
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
		sameMetadata(md, oldMeta) && sameButTimes(entries, former)
}

// apiVersion is the version that an object is stored at.
func apiVersion(rec *storage.Record) string {
	raw, _ := object.Field(rec.Value, "apiVersion")
	return strings.Trim(string(raw), `"`)
}

func sameAPIVersion(a, b object.Packed) bool {
	x, _ := object.Field(a.JSON(), "apiVersion")
	y, _ := object.Field(b.JSON(), "apiVersion")
	return bytes.Equal(x, y)
}

func sameButTimes(a, b []any) bool {
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
