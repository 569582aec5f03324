package engine

import (
	"context"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// PostSubresource does what a POST to a subresource asks for: the binding of a Pod, its eviction, a token. It is the body that goes through the
// stages. Where there is an answer, said is true.
func (e *Engine) PostSubresource(ctx context.Context, t Target, b Body, c Caller) (o Object, said bool, err error) {
	w, err := e.newWrite(ctx, t, c, opAction)
	if err != nil {
		return o, false, err
	}
	w.parent, w.createOnly = t, true
	if p := t.Version.Definition.PostsTo; p != nil {
		w.parent = e.targetAt(*p, t.Namespace, "")
	}
	w.sub = w.parent.Version.Subresource(w.parent.Subresource)
	w.setVersion(w.sub.Body)
	w.change = func(w *write) (object.Tree, error) {
		if object.String(b.Tree, "apiVersion") == w.sub.AlternateAPIVersion {
			b.Tree["apiVersion"] = w.v.APIVersion
		}
		sent, err := w.decodeBody(b)
		if err == nil && w.target.Subresource == "" {
			wipeSystemFields(object.EnsureMetadata(sent))
		}
		return shallowCopy(sent), err
	}
	if err = w.run(); err == nil && w.deletion != nil && w.deletion.deleteAfterMark {
		err = w.deletion.deleteMarked()
	}
	return w.result, w.sub.Respond != nil || w.sub.Do != nil && w.result.Record != nil, err
}

// targetAt returns an object of a built-in kind, or with the name "" one that the body names. The kind need not be served: --runtime-config
// may disable it, and an APIService may have another server serve it.
func (e *Engine) targetAt(p resource.Endpoint, namespace, name string) Target {
	d := e.Live.Load().Definition(p.Resource.Group, p.Resource.Resource)
	v := d.Versions[slices.IndexFunc(d.Versions, func(v *resource.Version) bool { return v.GroupVersion.Version == p.Resource.Version })]
	if !d.Namespaced {
		namespace = ""
	}
	return Target{Version: v, Namespace: namespace, Name: name, Subresource: p.Subresource}
}

// check judges what is posted.
func (w *write) check() (err error) {
	if w.sub.Do != nil {
		w.obj = w.desired
		return w.validate()
	}
	if w.typed.obj, err = w.v.Type.ToInternal(w.desired); err != nil {
		return asInternalError(err)
	}
	if w.parent.Name == "" {
		w.parent.Name = w.typed.obj.GetName()
	}
	if w.sub.Check != nil {
		err = w.sub.Check(w.parent.Name, w.typed.obj)
	}
	if err == nil && w.parent.Name == "" {
		err = apierrors.NewBadRequest("Name parameter required.")
	}
	return asUnknownError(err)
}

// respond answers what is posted.
func (w *write) respond() error {
	said, err := w.sub.Respond(w.strategyContext(), w.target.Name, w.typed.obj)
	if err != nil {
		return err
	}
	t, err := w.v.Type.FromInternal(said)
	if err != nil {
		return asInternalError(err)
	}
	w.result = ObjectOf(w.v, 0, object.Pack(t, 0))
	return nil
}

// parentWrite is the write of the object that is posted to. Admission has been asked about what is posted.
func (w *write) parentWrite(way opKind) *write {
	o := &write{ctx: w.ctx, engine: w.engine, outer: w, target: w.parent, caller: w.caller, kind: way, now: w.now, skipAdmission: true}
	o.setVersion(w.parent.Version)
	o.attemptState = attemptState{head: w.head, guards: w.guards}
	return o
}

// act stores what becomes of the object. As with upstream's, its strategy has no say in that, and whoever asks owns nothing of it.
func (w *write) act() (err error) {
	switch {
	case w.sub.Respond != nil:
		return w.respond()
	case w.sub.Delete != nil:
		return w.deleteParent()
	case w.sub.Do != nil:
		return w.do()
	}
	body, o := w.typed.obj, w.parentWrite(opStore)
	o.wantUID = string(body.GetUID())
	if err := o.load(); err != nil {
		return err
	}
	now := strconv.FormatInt(o.rec.Modified, 10)
	if wants := body.GetResourceVersion(); wants != "" && wants != now {
		return o.storagePreconditionError("ResourceVersion", wants, now)
	}
	obj, err := o.liveInternal()
	if err != nil {
		return err
	}
	if err := w.sub.Act(obj, body); err != nil {
		return asUnknownError(err)
	}
	obj.SetResourceVersion("")
	if o.obj, err = o.def.Storage.Type.FromInternal(obj); err != nil {
		return asInternalError(err)
	}
	if o.old, err = o.liveAtStorage(); err != nil {
		return err
	}
	for _, step := range []func() error{o.convert, o.relatedWrites, o.commit} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// do has Go code do what is posted, and stores what it has made of the object, if that is valid.
func (w *write) do() error {
	o := w.parentWrite(opStore)
	o.setVersion(o.def.Storage)
	if err := o.load(); err != nil {
		return err
	}
	o.old, o.obj = o.live, object.Copy(o.live)
	answer, err := w.sub.Do(w.strategyContext(), o.obj, object.Copy(w.obj))
	if err != nil {
		return asUnknownError(err)
	}
	if generationChanged(o.obj, o.old, o.v.Status) {
		object.SetGeneration(o.obj, object.Generation(o.old)+1)
	}
	o.desired = o.obj
	for _, step := range []func() error{o.validate, o.convert, o.commit} {
		if err := step(); err != nil {
			return err
		}
	}
	if answer != nil {
		w.result = ObjectOf(w.v, 0, object.Pack(answer, 0))
	}
	return nil
}
