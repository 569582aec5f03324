package write

import (
	"context"
	"errors"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/trellis-k8s/trellis/internal/admission"
	"github.com/trellis-k8s/trellis/internal/crd/conversion"
	"github.com/trellis-k8s/trellis/internal/engine/strategy"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/merge"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
	"github.com/trellis-k8s/trellis/internal/storage"
)

// attempt runs the stages of the write once, until it reaches the stage named upTo. If upTo is "", it runs all
// stages.
func (w *write) attempt(upTo string) error {
	w.beginAttempt()
	for i := range Stages {
		s := &Stages[i]
		if s.Name == upTo {
			return nil
		}
		if s.kinds&w.kind == 0 {
			continue
		}
		if err := w.Ctx.Err(); err != nil { // the client has disconnected, or the deadline has passed
			return err
		}
		end := w.step(s.Name)
		err := s.run(w)
		end(err)
		if err != nil {
			return err
		}
	}
	return nil
}

// step starts a step of the write in its trace. The caller ends the step with a call of the function end.
func (w *write) step(name string) (end func(error)) {
	if w.Caller.Trace == nil {
		return untraced
	}
	endStep := w.Caller.Trace.Start(name)
	return func(err error) {
		var current object.Tree
		// A later stage that needs the object of a plugin returns the error of its conversion.
		if err == nil && w.applyPluginObject() == nil {
			if current = w.Obj; current == nil {
				current = w.Desired
			}
		}
		endStep(err, current, w.Live, w.IsPatch)
	}
}

func untraced(error) {}

// newWrite returns a write that has not started.
func (wr *Writer) newWrite(ctx context.Context, t verb.Target, c verb.Caller, kind opKind) (*write, error) {
	if err := t.CheckSubresource(); err != nil {
		return nil, err
	}
	w := &write{writer: wr, kind: kind, now: wr.Now()}
	w.Ctx, w.Target, w.Caller = c.Slot.Context(ctx), t, c
	w.setVersion(t.Version)
	return w, nil
}

// setVersion sets the version of the kind that w uses.
func (w *write) setVersion(v *resource.Version) {
	w.Version, w.Def = v, v.Definition
	w.Memo = conversion.Memo{Converter: w.writer.Converter()}
	w.rules = strategy.RulesOf(v)
	w.fields = merge.ManagedFields{
		APIVersion:  v.APIVersion,
		Kind:        v.Definition.Names.Kind,
		Subresource: w.Target.Subresource,
		Parseable:   w.parseable,
		Convert:     w.convertTo,
		Reset:       w.rules.OwnableFields(w.Target.Subresource),
		AtomicLists: v.Definition.Behavior.AtomicLists,
	}
	t := w.Target
	t.Version = v
	w.View = w.writer.Of(t)
}

// run makes attempts until none conflicts with another write. The caller gets the warnings of the last attempt.
func (w *write) run() error {
	defer w.end()
	defer w.leaveQueue()
	for verified := false; ; {
		err, retry := w.attempt(""), false
		if err != nil {
			retry, err = w.shouldRetry(err)
		}
		if !retry && !verified {
			verified = true
			retry, err = w.outdated(err)
		}
		if !retry {
			w.sendWarnings()
			return verb.Status(err)
		}
	}
}

// outdated reports whether to make another attempt after the last one, because it has ended before the commit, and
// another process had changed the object or its namespace before the request. err is the error of the last attempt. If
// outdated returns false, it also returns the error for the caller.
func (w *write) outdated(err error) (bool, error) {
	status := apierrors.APIStatus(nil)
	switch {
	case w.compared, w.kind&(opStore|opDelete|opAction) == 0, w.kind == opAction && err == nil,
		errors.As(verb.Status(err), &status) && status.Status().Code >= http.StatusInternalServerError:
		return false, err
	}
	head, failed := w.writer.Store.Fresh(w.Ctx)
	switch {
	case failed == nil:
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return false, failed
	default:
		return false, err
	}
	changed := func(key string) bool { return head.Get(key) != w.head.Get(key) }
	namespaces := w.writer.namespaces()
	return !w.CreateOnly && changed(w.key()) ||
		namespaces != nil && w.Target.Namespace != "" && changed(namespaces.Key("", w.Target.Namespace)), err
}

// end calls the functions that plugins have registered for the end of the write.
func (w *write) end() {
	for _, do := range w.admission.afterAll {
		do()
	}
	w.admission.afterAll = nil
}

// beginAttempt resets the attempt's state. The attempt uses the newest snapshot.
func (w *write) beginAttempt() {
	w.Attempt, w.state = strategy.Attempt{}, state{head: w.writer.Store.Head()}
	w.Caller.Trace.Begin(w.Target.Subresource == "scale")
	switch {
	case w.kind == opDelete:
		w.Op = admission.Delete
	case w.CreateOnly:
		w.Op, w.loaded = admission.Create, true
	case w.kind == opConnect:
		w.Op, w.loaded = admission.Connect, true
	}
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
		if err := w.enterQueue(w.Ctx, conflict.Key); err != nil {
			return false, err
		}
	}
	err = w.writer.catchUp(w.Ctx, conflict)
	return err == nil, err
}

// refresh waits for the conflicting write of a guarded object, such as the CRD or the namespace. For a custom kind
// it then looks up the current version in the catalog.
func (w *write) refresh(conflict *storage.ConflictError) error {
	if err := w.writer.catchUp(w.Ctx, conflict); err != nil || w.Version.Schema == nil {
		return err
	}
	catalog, err := w.writer.Live.Wait(w.Ctx, w.writer.Store.Head().Revision())
	if err != nil {
		return verb.Status(err)
	}
	requested := w.Target.Version.GroupVersion // not w.Version, which may be a version that is not served
	v := catalog.Find(requested.Group, requested.Version, w.Def.Names.Plural)
	if v == nil || v.Schema == nil {
		return verb.NotServed()
	}
	if err := (verb.Target{Version: v, Subresource: w.Target.Subresource}).CheckSubresource(); err != nil {
		return err
	}
	w.setVersion(v)
	return nil
}

// catchUp waits until the store has the revision of the conflicting write.
func (wr *Writer) catchUp(ctx context.Context, conflict *storage.ConflictError) error {
	_, err := wr.Store.Wait(ctx, conflict.Revision)
	return verb.Status(err)
}

// asConflict returns the conflict that err contains, if any. A conflict means that another write has changed the
// same object, or an object that a guard names.
func asConflict(err error) (*storage.ConflictError, bool) {
	var c *storage.ConflictError
	return c, errors.As(err, &c)
}

func (w *write) Warn(texts ...string) { w.Warnings = append(w.Warnings, texts...) }

// sendWarnings passes the warnings to the caller.
func (w *write) sendWarnings() {
	if w.Caller.Warn == nil {
		return
	}
	for _, text := range w.Warnings {
		w.Caller.Warn(text)
	}
}

func (w *write) parseable(apiVersion string) (typed.ParseableType, bool) {
	v := w.Def.Version(apiVersion)
	if v == nil || v.Parseable == nil {
		return typed.ParseableType{}, false
	}
	p, err := v.Parseable()
	return p, err == nil
}

// convertTo converts t for field management. It does not modify t.
func (w *write) convertTo(t object.Tree, apiVersion string) (object.Tree, error) {
	to := w.Def.Version(apiVersion)
	if to == nil {
		return nil, errors.New("cannot convert object: unknown version " + apiVersion)
	}
	out, err := w.Memo.ConvertUnpruned(w.Ctx, t, to)
	return out, verb.Status(err)
}
