package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// write is one request to write, on its way through the stages.
type write struct {
	ctx     context.Context // of the request: reading and storing may take a conversion
	engine  *Engine
	target  Target
	caller  Caller
	kind     opKind
	change  changeFunc                // how the object that is wanted comes about; nil for a deletion
	createOnly   bool                  // it creates, and nothing else
	upserts bool                  // it creates what it does not find
	isPatch bool                  // it is a patch or an apply
	sub     *resource.Subresource // that is posted to, if one is
	parent    Target                // and the object whose it is
	wantUID     string                // that the live object must have, unless ""
	deleteOptions metav1.DeleteOptions  // of a deletion
	now     time.Time
	conversions    writeConversions
	outer  *write        // that this one is part of, if any
	queued    chan struct{} // the queue this write is at the head of, if any
	generatedNames   int           // that have been generated
	// newName and newUID are what has been generated for a new object. Each attempt is at the same one, unless its name is taken.
	newName, newUID string
	// deletion is what became of the object by what was posted; admitted says that admission is not asked about this write.
	deletion *write
	skipAdmission bool

	// The kind, as the catalog has it.
	v      *resource.Version
	def    *resource.Definition
	rules  rules
	fields merge.ManagedFields
	reader reader

	attemptState
	request admission.Request // as plugins see it
	afterAttempt   []func()          // to be called when the attempt has ended
	// validated says that an attempt at this create has passed admission.
	validated bool
}

// attemptState is what the stages make of a write in one attempt.
type attemptState struct {
	head   *storage.Snapshot // that it starts from
	loaded bool              // rec and live have been looked for
	rec    *storage.Record   // the live object, nil where there is none
	op     admission.Operation

	// live is the live object, wanted what it is to become, both at the version of the request. live is never modified; of
	// wanted only the fields at the top and those of its metadata, for an attempt after this one may start from the rest.
	live, desired object.Tree
	managed        bool // wanted has its managedFields
	// old and obj are the same in the form that the kind's rules want.
	old, obj object.Tree
	typed    typedWrite                    // of a kind with a Strategy
	replacements int                           // times that admission has replaced wanted
	scale    struct{ is, was object.Tree } // the Scale that wanted is made of, and that of live, with their owners

	packed    object.Packed     // obj as it is to be stored, or as it was last
	modified   resource.Internal // the object, where it is changed before it is deleted
	related      []storage.Write   // of other objects, in the same commit
	deleted      bool              // the object is deleted
	deleteAfterMark  bool              // it is deleted once it has been stored as marked
	noop bool              // a deletion that changes nothing
	guards    []storage.Guard
	pendingWarnings    []string
	result    Object
}

// changeFunc is what a caller asks for: it makes the object that is wanted, at the version of the request. What it returns is
// the attempt's own down to its metadata.
type changeFunc func(w *write) (object.Tree, error)

// newWrite is a write that has not begun.
func (e *Engine) newWrite(ctx context.Context, t Target, c Caller, way opKind) (*write, error) {
	if err := e.checkSubresource(t); err != nil {
		return nil, err
	}
	w := &write{ctx: c.Slot.Context(ctx), engine: e, target: t, caller: c, kind: way, now: e.clock()}
	w.setVersion(t.Version)
	return w, nil
}

func (e *Engine) clock() time.Time {
	if e.Now != nil {
		return e.Now()
	}
	return time.Now()
}

// setVersion points w at one version of a kind.
func (w *write) setVersion(v *resource.Version) {
	w.v, w.def, w.conversions = v, v.Definition, nil
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

// run makes attempts until no other write gets in between. The caller hears the warnings of the last one.
func (w *write) run() error {
	defer w.leaveQueue()
	for {
		err := w.attemptAll()
		if err == nil {
			break
		}
		if again, err := w.shouldRetry(err); !again {
			w.sendWarnings()
			return storageError(err)
		}
	}
	w.sendWarnings()
	return nil
}

func (w *write) attemptAll() error {
	defer w.endAttempt()
	return w.attempt("")
}

// endAttempt tells the plugins that want to know it that an attempt has ended.
func (w *write) endAttempt() {
	for _, do := range w.afterAttempt {
		do()
	}
	w.afterAttempt = nil
}

// beginAttempt starts an attempt from the newest state.
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

// load finds the live object, once an attempt.
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
		if at := versionOf(w.def, apiVersion(w.rec)); at != nil {
			w.setVersion(at)
		}
	}
	var err error
	w.live, err = w.readLive()
	return err
}

// findRecord finds the live object. Only the newest state there is can tell that there is none.
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
	seen, err := w.reader.read(w.ctx, w.rec) // as it has been read before, most likely
	if err != nil {
		return nil, err
	}
	live, err := seen.Tree()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	stored, _, err := w.reader.decode(packed(w.rec), 0)
	w.conversions = writeConversions{{in: live, out: stored}}
	return live, err
}

// checkUID is upstream's answer where the object is not the one that the caller means.
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

// storagePreconditionError is upstream's answer where the object is not the one, or not as, the caller wants. Its dry runs ask above the prefix of keys.
func (w *write) storagePreconditionError(what, wants, has string) error {
	key := w.key()
	if w.caller.DryRun {
		key = strings.TrimPrefix(key, "/registry")
	}
	return apierrors.NewConflict(w.v.GroupResource(), w.target.Name, fmt.Errorf(
		"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: %s in precondition: %s, %[2]s in object meta: %[4]s",
		key, what, wants, has))
}

// shouldRetry decides what a failed attempt means: whether to make one more, or the error to give.
func (w *write) shouldRetry(err error) (bool, error) {
	lost, ok := asConflict(err)
	switch {
	case !ok:
		return w.retryWithNewName(err), err
	case lost.Guard:
		err = w.refresh(lost)
		return err == nil, err
	}
	if w.kind&(opStore|opAction) != 0 { // a deletion is soon done, and waits for nobody
		if err := w.enterQueue(w.ctx, lost.Key); err != nil {
			return false, err
		}
	}
	err = w.engine.catchUp(w.ctx, lost)
	return err == nil, err
}

// refresh looks the kind up again after the CRD or the namespace has changed under a write.
func (w *write) refresh(lost *storage.ConflictError) error {
	if err := w.engine.catchUp(w.ctx, lost); err != nil || w.def.Custom == nil {
		return err
	}
	catalog, err := w.engine.Live.Wait(w.ctx, w.engine.Store.Head().Revision())
	if err != nil {
		return storageError(err)
	}
	asked := w.target.Version.GroupVersion // w.v may be one that is not served
	v := catalog.Find(asked.Group, asked.Version, w.def.Names.Plural)
	if v == nil || v.Definition.Custom == nil {
		return notServed()
	}
	if err := w.engine.checkSubresource(Target{Version: v, Subresource: w.target.Subresource}); err != nil {
		return err
	}
	w.setVersion(v)
	return nil
}

// catchUp makes sure that the next attempt sees what this one lost against.
func (e *Engine) catchUp(ctx context.Context, lost *storage.ConflictError) error {
	_, err := e.Store.Wait(ctx, lost.Revision)
	return storageError(err)
}

// asConflict reports that another write came first: to the same object, or to what this one relies on.
func asConflict(err error) (*storage.ConflictError, bool) {
	var c *storage.ConflictError
	return c, errors.As(err, &c)
}

func (w *write) warn(texts ...string) { w.pendingWarnings = append(w.pendingWarnings, texts...) }

// sendWarnings gives the caller the warnings.
func (w *write) sendWarnings() {
	if w.caller.Warn == nil {
		return
	}
	for _, text := range w.pendingWarnings {
		w.caller.Warn(text)
	}
}

// key is the storage key of the target.
func (w *write) key() string { return w.def.Key(w.target.Namespace, w.name()) }

func (w *write) parseable(apiVersion string) (typed.ParseableType, bool) {
	v := versionOf(w.def, apiVersion)
	if v == nil || v.Parseable == nil {
		return typed.ParseableType{}, false
	}
	p, err := v.Parseable()
	return p, err == nil
}

// convertTo translates t, which it does not modify, for field management.
func (w *write) convertTo(t object.Tree, apiVersion string) (object.Tree, error) {
	to := versionOf(w.def, apiVersion)
	if to == nil {
		return nil, errors.New("engine: version " + apiVersion + " is not known")
	}
	from := versionOf(w.def, object.String(t, "apiVersion"))
	if from == to {
		return t, nil
	}
	if conversion.UsesWebhook(w.def) {
		return w.convertByWebhook(t, to)
	}
	out, err := conversion.Convert(w.ctx, maps.Clone(t), from, to)
	return out, asInternalError(err)
}
