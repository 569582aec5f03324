package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/conversion"
	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// write is the state of one write request while the stages run.
type write struct {
	ctx            context.Context // context of the request, for conversions during reads and writes
	engine         *Engine
	target         Target
	caller         Caller
	kind           opKind
	change         changeFunc            // builds the desired object; nil for a deletion
	createOnly     bool                  // the write must not change an existing object
	upserts        bool                  // the write creates a missing object
	isPatch        bool                  // the write is a patch or an apply
	sub            *resource.Subresource // the subresource of an opAction; nil for other kinds of write
	parent         Target                // the object to which sub belongs
	wantUID        string                // the required UID of the live object; "" allows any
	deleteOptions  metav1.DeleteOptions  // options of an opDelete
	now            time.Time
	conversions    conversion.Memo
	outer          *write        // the write that contains this write, or nil
	queued         chan struct{} // the queue if this write is at its head, or nil
	generatedNames int           // how many names have been generated
	// newName and newUID are the generated name and UID of a new object. All attempts use the same values, except
	// that a taken name is replaced.
	newName, newUID string
	// deletion is the deletion of the parent object that an Eviction has requested. It is nil for other writes.
	deletion *write
	// skipAdmission is set for a write that is part of an opAction. The posted body has already passed admission.
	skipAdmission bool

	// The version and the kind in the current catalog.
	v      *resource.Version
	def    *resource.Definition
	rules  rules
	fields merge.ManagedFields
	reader reader

	attemptState
	request  admission.Request // the write in the form that plugins receive
	afterAll []func()          // called when the write has ended, after its last attempt
	// validated means that an earlier attempt of this create has passed validating admission.
	validated bool
}

// attemptState is the part of a write that is reset at the start of each attempt.
type attemptState struct {
	head   *storage.Snapshot // the snapshot that the attempt reads
	loaded bool              // rec and live have been looked up
	rec    *storage.Record   // the live object's record; nil if the object does not exist
	op     admission.Operation

	// live is the live object, and desired is the object that the write wants to store. Both are at the version of
	// the request. live is never modified. In desired, only the top-level fields and the fields of its metadata may
	// be modified, because the next attempt may share the rest.
	live, desired object.Tree
	managed       bool // the managedFields of desired are up to date
	// old and obj are live and desired in the form that the kind's rules use.
	old, obj     object.Tree
	typed        typedWrite                          // for kinds with a Strategy
	replacements int                                 // how often admission has replaced desired
	scale        struct{ desired, live object.Tree } // the Scales of desired and live, with managedFields

	packed          object.Packed     // the object to store, or the last state of a deleted object
	modified        resource.Internal // the object after changes by its deletion; nil if unchanged
	related         []storage.Write   // writes of other objects in the same commit
	deleted         bool              // the write deletes the object
	deleteAfterMark bool              // the object is deleted right after it has been stored as marked
	noop            bool              // the deletion request changes nothing
	guards          []storage.Guard
	pendingWarnings []string
	result          Object
}

// changeFunc builds the desired object of a write at the version of the request. The attempt may modify the
// result's top-level fields and the fields of its metadata.
type changeFunc func(w *write) (object.Tree, error)

// newWrite returns a write that has not started.
func (e *Engine) newWrite(ctx context.Context, t Target, c Caller, kind opKind) (*write, error) {
	if err := e.checkSubresource(t); err != nil {
		return nil, err
	}
	w := &write{ctx: c.Slot.Context(ctx), engine: e, target: t, caller: c, kind: kind, now: e.clock()}
	w.setVersion(t.Version)
	return w, nil
}

func (e *Engine) clock() time.Time {
	if e.Now != nil {
		return e.Now()
	}
	return time.Now()
}

// setVersion sets the version of the kind that w uses.
func (w *write) setVersion(v *resource.Version) {
	w.v, w.def = v, v.Definition
	w.conversions = conversion.Memo{Converter: w.engine.converter()}
	w.rules = rulesOf(v)
	w.fields = merge.ManagedFields{
		APIVersion:  v.APIVersion,
		Kind:        v.Definition.Names.Kind,
		Subresource: w.target.Subresource,
		Parseable:   w.parseable,
		Convert:     w.convertTo,
		Reset:       w.rules.ownableFields(w.target.Subresource),
		AtomicLists: v.Definition.Behavior.AtomicLists,
	}
	t := w.target
	t.Version = v
	w.reader = w.engine.readerOf(t)
}

// run makes attempts until none conflicts with another write. The caller gets the warnings of the last attempt.
func (w *write) run() error {
	defer w.end()
	defer w.leaveQueue()
	for {
		err := w.attempt("")
		if err == nil {
			break
		}
		if retry, err := w.shouldRetry(err); !retry {
			w.sendWarnings()
			return storageError(err)
		}
	}
	w.sendWarnings()
	return nil
}

// end calls the functions that plugins have registered for the end of the write.
func (w *write) end() {
	for _, do := range w.afterAll {
		do()
	}
	w.afterAll = nil
}

// beginAttempt resets the attempt's state. The attempt uses the newest snapshot.
func (w *write) beginAttempt() {
	w.attemptState = attemptState{head: w.engine.Store.Head()}
	w.caller.Trace.begin(w.target.Subresource == "scale")
	switch {
	case w.kind == opDelete:
		w.op = admission.Delete
	case w.createOnly:
		w.op, w.loaded = admission.Create, true
	case w.kind == opConnect:
		w.op, w.loaded = admission.Connect, true
	}
}

// load looks up and decodes the live object, once per attempt.
func (w *write) load() error {
	if w.loaded {
		return nil
	}
	w.loaded = true
	if err := w.findRecord(); err != nil {
		return err
	}
	if w.rec == nil && !w.upserts {
		return apierrors.NewNotFound(w.v.GroupResource(), w.target.Name)
	}
	if err := w.checkUID(); err != nil {
		return err
	}
	if w.rec == nil {
		w.op = admission.Create
		return nil
	}
	w.op = admission.Update
	if w.target.AsStored {
		if at := w.def.Version(apiVersion(w.rec)); at != nil {
			w.setVersion(at)
		}
	}
	var err error
	w.live, err = w.readLive()
	return err
}

// findRecord looks up the live object's record. If the attempt's snapshot does not have the record, findRecord
// looks it up in the newest state of the store. That state may include writes of another process.
func (w *write) findRecord() (err error) {
	if w.rec = w.head.Get(w.key()); w.rec != nil {
		return nil
	}
	if w.head, err = w.engine.newest(w.ctx); err == nil {
		w.rec = w.head.Get(w.key())
	}
	return err
}

// readLive decodes the live object at the version of the request.
func (w *write) readLive() (object.Tree, error) {
	if !w.reader.remote {
		return w.reader.tree(w.ctx, packed(w.rec), w.rec.Modified)
	}
	seen, err := w.reader.read(w.ctx, w.rec) // usually cached by an earlier read
	if err != nil {
		return nil, err
	}
	live, err := seen.Tree()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	stored, err := w.reader.decode(packed(w.rec), 0)
	w.conversions.Add(live, stored)
	return live, err
}

// checkUID returns upstream's conflict if the caller requires another UID than that of the live object.
func (w *write) checkUID() error {
	if w.wantUID == "" {
		return nil
	}
	var uid string
	if w.rec != nil {
		uid = string(metaOf(w.rec).meta.UID)
	}
	if uid == w.wantUID {
		return nil
	}
	return w.storagePreconditionError("UID", w.wantUID, uid)
}

// storagePreconditionError returns the conflict that upstream's storage returns for an unmet precondition. As in
// upstream, the key in the text lacks its prefix in a dry run.
func (w *write) storagePreconditionError(field, wants, has string) error {
	key := w.key()
	if w.caller.DryRun {
		key = strings.TrimPrefix(key, "/registry")
	}
	return apierrors.NewConflict(w.v.GroupResource(), w.target.Name, fmt.Errorf(
		"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: "+
			"Precondition failed: %s in precondition: %s, %[2]s in object meta: %[4]s",
		key, field, wants, has))
}

// shouldRetry reports whether to make another attempt after err. After a conflict it waits until the next attempt
// can see the conflicting write. If it returns false, it also returns the error for the caller.
func (w *write) shouldRetry(err error) (bool, error) {
	conflict, ok := asConflict(err)
	switch {
	case !ok:
		return w.retryWithNewName(err), err
	case conflict.Guard:
		err = w.refresh(conflict)
		return err == nil, err
	}
	if w.kind&(opStore|opAction) != 0 { // deletions are quick, so they do not queue
		if err := w.enterQueue(w.ctx, conflict.Key); err != nil {
			return false, err
		}
	}
	err = w.engine.catchUp(w.ctx, conflict)
	return err == nil, err
}

// refresh waits for the conflicting write of a guarded object, such as the CRD or the namespace. For a custom kind
// it then looks up the current version in the catalog.
func (w *write) refresh(conflict *storage.ConflictError) error {
	if err := w.engine.catchUp(w.ctx, conflict); err != nil || w.def.Custom == nil {
		return err
	}
	catalog, err := w.engine.Live.Wait(w.ctx, w.engine.Store.Head().Revision())
	if err != nil {
		return storageError(err)
	}
	requested := w.target.Version.GroupVersion // not w.v, which may be a version that is not served
	v := catalog.Find(requested.Group, requested.Version, w.def.Names.Plural)
	if v == nil || v.Definition.Custom == nil {
		return notServed()
	}
	if err := w.engine.checkSubresource(Target{Version: v, Subresource: w.target.Subresource}); err != nil {
		return err
	}
	w.setVersion(v)
	return nil
}

// catchUp waits until the store has the revision of the conflicting write.
func (e *Engine) catchUp(ctx context.Context, conflict *storage.ConflictError) error {
	_, err := e.Store.Wait(ctx, conflict.Revision)
	return storageError(err)
}

// asConflict returns the conflict that err contains, if any. A conflict means that another write has changed the
// same object, or an object that a guard names.
func asConflict(err error) (*storage.ConflictError, bool) {
	var c *storage.ConflictError
	return c, errors.As(err, &c)
}

func (w *write) warn(texts ...string) { w.pendingWarnings = append(w.pendingWarnings, texts...) }

// sendWarnings passes the warnings to the caller.
func (w *write) sendWarnings() {
	if w.caller.Warn == nil {
		return
	}
	for _, text := range w.pendingWarnings {
		w.caller.Warn(text)
	}
}

// key returns the storage key of the target.
func (w *write) key() string { return w.def.Key(w.target.Namespace, w.name()) }

func (w *write) parseable(apiVersion string) (typed.ParseableType, bool) {
	v := w.def.Version(apiVersion)
	if v == nil || v.Parseable == nil {
		return typed.ParseableType{}, false
	}
	p, err := v.Parseable()
	return p, err == nil
}

// convertTo converts t for field management. It does not modify t.
func (w *write) convertTo(t object.Tree, apiVersion string) (object.Tree, error) {
	to := w.def.Version(apiVersion)
	if to == nil {
		return nil, errors.New("cannot convert object: unknown version " + apiVersion)
	}
	out, err := w.conversions.ConvertUnpruned(w.ctx, t, to)
	return out, storageError(err)
}

// at returns t at a version of the kind. It does not modify t. The result may share memory with t.
func (w *write) at(t object.Tree, to *resource.Version) (object.Tree, error) {
	out, err := w.conversions.Convert(w.ctx, t, to)
	return out, storageError(err)
}
