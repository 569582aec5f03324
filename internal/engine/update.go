package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// change makes the new state of an object out of the live one, both at the request's
// version; live is nil where the object does not exist. live is not modified.
type change func(live object.Tree) (object.Tree, error)

// Update replaces an object, or its subresource. created is true where a PUT made it.
func (e *Engine) Update(ctx context.Context, t Target, b Body, c Caller) (o Object, created bool, err error) {
	if t.Subresource == "scale" {
		o, err = e.updateScale(ctx, t, b, c)
		return o, false, err
	}
	w, err := e.begin(ctx, t, c)
	if err != nil {
		return Object{}, false, err
	}
	body, err := w.accept(b)
	if err != nil {
		return Object{}, false, err
	}
	if err := w.inNamespace(body); err != nil {
		return Object{}, false, err
	}
	if err := w.checkName(body); err != nil {
		return Object{}, false, err
	}
	w.dedup(body, false)
	p := preconditions{uid: string(object.UID(body))}
	return w.run(ctx, p, w.def.Behavior.CreateOnUpdate && t.Subresource == "", w.replacement(body))
}

// replacement is the change that a PUT makes. A body without a resourceVersion may be needed again.
func (w *writing) replacement(body object.Tree) change {
	given, hasGiven := object.Metadata(body)["managedFields"]
	again := object.ResourceVersion(body) == ""
	return func(live object.Tree) (object.Tree, error) {
		t := body
		if again {
			t = object.Copy(body)
		} else if md := object.EnsureMetadata(t); hasGiven {
			md["managedFields"] = given
		} else {
			delete(md, "managedFields")
		}
		return w.own(live, t)
	}
}

// preconditions are those of an update, "" for none.
type preconditions struct{ uid string }

// check is upstream's answer where they do not hold. rec may be nil.
func (p preconditions) check(w *writing, rec *storage.Record) error {
	if p.uid == "" {
		return nil
	}
	var uid string
	if rec != nil {
		uid = string(derive(rec).meta.UID)
	}
	if uid == p.uid {
		return nil
	}
	return apierrors.NewConflict(w.v.GroupResource(), w.target.Name, fmt.Errorf(
		"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: %s, UID in object meta: %s",
		w.key(), p.uid, uid))
}

// run applies a change to the target's newest state until no other write gets in between.
func (w *writing) run(ctx context.Context, p preconditions, create bool, f change) (o Object, created bool, err error) {
	defer w.leave()
	for {
		snap := w.engine.Store.Head()
		rec := snap.Get(w.key())
		if rec == nil && !create {
			return Object{}, false, apierrors.NewNotFound(w.v.GroupResource(), w.target.Name)
		}
		if err := p.check(w, rec); err != nil {
			return Object{}, false, err
		}
		if rec == nil {
			o, err = w.makeNew(ctx, f)
		} else {
			o, err = w.update(ctx, rec, f)
		}
		if err == nil {
			return o, rec == nil, nil
		}
		if retry, err := w.again(ctx, err); !retry {
			return Object{}, false, storageError(err)
		}
	}
}

// again decides what a failed try means: whether to try once more, or the error to give.
func (w *writing) again(ctx context.Context, err error) (bool, error) {
	if lost, failed := guardFailed(err); failed {
		err := w.refresh(ctx, lost)
		return err == nil, err
	}
	c, ok := overtaken(err)
	if !ok {
		return false, err
	}
	w.quiet = true
	if err = w.queue(ctx); err == nil {
		err = w.engine.catchUp(ctx, c)
	}
	return err == nil, err
}

// makeNew creates what an update or apply has not found.
func (w *writing) makeNew(ctx context.Context, f change) (Object, error) {
	w.upsert = true
	t, err := f(nil)
	if err != nil {
		return Object{}, err
	}
	if _, err := parseVersion(object.ResourceVersion(t)); err != nil {
		return Object{}, err
	}
	o, err := w.create(ctx, t)
	if apierrors.IsAlreadyExists(err) && !w.caller.DryRun {
		return o, &storage.ConflictError{Key: w.key(), Current: w.engine.Store.Head().Get(w.key())}
	}
	return o, err
}

// update makes one attempt to change rec.
func (w *writing) update(ctx context.Context, rec *storage.Record, f change) (Object, error) {
	if w.target.AsStored {
		if at := versionOf(w.def, apiVersion(rec)); at != nil {
			w.resolve(at)
		}
	}
	old, live, err := w.load(rec)
	if err != nil {
		return Object{}, err
	}
	t, err := f(live)
	if err != nil {
		return Object{}, err
	}
	if err := w.checkVersion(t, rec); err != nil {
		return Object{}, err
	}
	w.form = t
	if w.def.Custom == nil {
		if t, err = w.toStorage(t); err != nil {
			return Object{}, err
		}
	}
	if t, err = w.beforeUpdate(ctx, t, old); err != nil {
		return Object{}, err
	}
	if w.emptied(t, old) {
		return w.removeUpdated(ctx, t, rec)
	}
	p, err := w.stored(t)
	if err != nil {
		return Object{}, err
	}
	switch {
	case w.unchanged(p, t, old, rec):
		return w.result(rec)
	case w.caller.DryRun:
		return w.unstored(p, rec.Modified)
	}
	return w.replace(ctx, p, t, rec)
}

// replace commits p, the new state of rec.
func (w *writing) replace(ctx context.Context, p object.Packed, t object.Tree, rec *storage.Record) (Object, error) {
	var guards []storage.Guard
	if g := w.def.Behavior.Guards; g != nil {
		guards = g(ctx, t)
	}
	next, err := w.commit(ctx, rec.Key, p, rec.Modified, guards)
	if err != nil {
		return Object{}, err
	}
	return w.result(next)
}

// load decodes rec twice over: as the kind's own functions want it, and at the request's
// version. For a custom kind, and where the versions are the same, that is one tree.
func (w *writing) load(rec *storage.Record) (old, live object.Tree, err error) {
	p := object.Packed(rec.Value)
	if w.reader.remote { // as it has been read before, most likely
		seen, err := w.reader.at(w.ctx, rec)
		if err != nil {
			return nil, nil, err
		}
		if live, err = seen.Tree(); err != nil {
			return nil, nil, apierrors.NewInternalError(err)
		}
		stored, _, err := w.reader.decode(p, 0)
		w.memo = memo{{in: live, out: stored}}
		return live, live, err
	}
	if live, err = w.reader.tree(w.ctx, p, rec.Modified); err != nil {
		return nil, nil, err
	}
	if w.def.Custom != nil || w.v == w.def.Storage {
		return live, live, nil
	}
	if conversion.Trivial(w.def.Storage, w.v) {
		old = make(object.Tree, len(live))
		for k, v := range live {
			old[k] = v
		}
		old["apiVersion"] = w.def.Storage.APIVersion
		return old, live, nil
	}
	old, err = w.engine.reader(w.def.Storage).tree(w.ctx, p, rec.Modified)
	return old, live, err
}

// parseVersion reads the resourceVersion that a client sent, 0 if none.
func parseVersion(rv string) (uint64, error) {
	revision, err := strconv.ParseUint(rv, 10, 64)
	if rv != "" && err != nil {
		return 0, plain(field.Invalid(field.NewPath("resourceVersion"), rv, err.Error()).Error())
	}
	return revision, nil
}

// checkVersion compares the resourceVersion of t with rec's.
func (w *writing) checkVersion(t object.Tree, rec *storage.Record) error {
	gr, rv := w.v.GroupResource(), object.ResourceVersion(t)
	switch revision, err := parseVersion(rv); {
	case err != nil:
		return err
	case revision == uint64(rec.Modified):
		return nil
	case revision != 0:
		return apierrors.NewConflict(gr, w.target.Name, errStaleObject)
	}
	if w.def.Custom == nil && w.def.Behavior.UnconditionalUpdate {
		object.SetResourceVersion(t, strconv.FormatInt(rec.Modified, 10))
		return nil
	}
	return apierrors.NewInvalid(schema.GroupKind{Group: gr.Group, Kind: gr.Resource}, w.target.Name, field.ErrorList{
		field.Invalid(field.NewPath("metadata", "resourceVersion"), uint64(0), "must be specified for an update"),
	})
}

// beforeUpdate restores what an update may not change, counts the generation and validates.
func (w *writing) beforeUpdate(ctx context.Context, t, old object.Tree) (object.Tree, error) {
	object.SetGeneration(t, object.Generation(old))
	t, err := w.prepareUpdate(ctx, t, old)
	if err != nil {
		return nil, err
	}
	md, oldMeta := object.EnsureMetadata(t), object.Metadata(old)
	if object.String(md, "uid") == "" {
		keep(md, oldMeta, "uid")
	}
	if object.String(oldMeta, "creationTimestamp") != "" {
		keep(md, oldMeta, "creationTimestamp")
	}
	if object.String(oldMeta, "deletionTimestamp") != "" {
		keep(md, oldMeta, "deletionTimestamp")
	}
	if _, ok := md["deletionGracePeriodSeconds"]; !ok {
		keep(md, oldMeta, "deletionGracePeriodSeconds")
	}
	if err := w.validateUpdate(ctx, t, old); err != nil {
		return nil, err
	}
	return t, nil
}

// keep carries a field over from old.
func keep(t, old object.Tree, key string) {
	if v, ok := old[key]; ok {
		t[key] = v
	} else {
		delete(t, key)
	}
}

// prepareUpdate keeps the parts that belong to the other endpoint, and counts the generation.
func (w *writing) prepareUpdate(ctx context.Context, t, old object.Tree) (object.Tree, error) {
	sub := w.target.Subresource
	switch {
	case sub == "status":
		t = w.statusOnly(t, old)
	case w.v.Status:
		keep(t, old, "status")
	}
	if prepare := w.def.Behavior.PrepareUpdate; prepare != nil {
		t = maps.Clone(t) // the next attempt starts from what the client sent
		if err := prepare(ctx, t, old, sub); err != nil {
			return nil, err
		}
	}
	if sub != "status" && (w.def.Custom != nil || w.def.Behavior.Generation) && w.respecified(t, old) {
		object.SetGeneration(t, object.Generation(old)+1)
	}
	return t, nil
}

// statusOnly is old with the status of t, and the metadata that a write of it may change.
func (w *writing) statusOnly(t, old object.Tree) object.Tree {
	out := make(object.Tree, len(old)+1)
	for k, v := range old {
		out[k] = v
	}
	keep(out, t, "status")
	if w.def.Custom == nil {
		keep(out, t, "metadata")
		return out
	}
	md := make(object.Tree, len(object.Metadata(old)))
	for k, v := range object.Metadata(old) {
		md[k] = v
	}
	keep(md, object.Metadata(t), "managedFields")
	out["metadata"] = md
	return out
}

// respecified reports a difference that the generation counts.
func (w *writing) respecified(t, old object.Tree) bool {
	ignore := func(key string) bool {
		return key == "metadata" || key == "apiVersion" || key == "kind" || key == "status" && w.v.Status
	}
	for key, v := range t {
		if other, ok := old[key]; !ignore(key) && (!ok || !object.Equal(v, other)) {
			return true
		}
	}
	for key := range old {
		if _, ok := t[key]; !ok && !ignore(key) {
			return true
		}
	}
	return false
}

// unchanged reports whether p, packed from t, is what rec holds already. The times in
// managedFields do not count; those of old are as long as the new ones.
func (w *writing) unchanged(p object.Packed, t, old object.Tree, rec *storage.Record) bool {
	if len(p) != len(rec.Value) {
		return false
	}
	stored := object.Packed(rec.Value)
	if bytes.Equal(p.JSON(), stored.JSON()) {
		return true // though it may have been stored under another schema
	}
	if !sameAPIVersion(stored, p) || stored.Fingerprint() != p.Fingerprint() && !bytes.Equal(object.Pack(old, 0).JSON(), stored.JSON()) {
		return false
	}
	for key, v := range t {
		switch key {
		case "apiVersion", "kind", "metadata":
			continue
		}
		if !object.Equal(v, old[key]) {
			return false
		}
	}
	md, oldMeta := object.Metadata(t), object.Metadata(old)
	entries, _ := md["managedFields"].([]any)
	former, _ := oldMeta["managedFields"].([]any)
	return len(t) == len(old) && object.Generation(t) == object.Generation(old) && sameMetadata(md, oldMeta) && sameButTimes(entries, former)
}

// apiVersion is the version that an object is stored at.
func apiVersion(rec *storage.Record) string {
	raw, _ := object.Field(object.Packed(rec.Value).JSON(), "apiVersion")
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

// emptied reports that an update took away the last thing a deletion waited for.
func (w *writing) emptied(t, old object.Tree) bool {
	if len(object.Finalizers(t)) > 0 || !deletionStarted(old) || !immediate(old) {
		return false
	}
	deletable := w.def.Behavior.Deletable
	return deletable == nil || deletable(t)
}

// removeUpdated deletes rec, whose last state is t.
func (w *writing) removeUpdated(ctx context.Context, t object.Tree, rec *storage.Record) (Object, error) {
	p, err := w.stored(t)
	if err != nil {
		return Object{}, err
	}
	if !w.caller.DryRun {
		_, err := w.engine.commit(ctx, []storage.Write{{Key: rec.Key, Expected: rec.Modified}})
		var c *storage.ConflictError
		if errors.As(err, &c) && c.Current == nil {
			err = nil // somebody else has removed it: as upstream, that is success
		}
		if err != nil {
			return Object{}, err
		}
	}
	return w.unstored(p, rec.Modified)
}
