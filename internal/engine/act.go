package engine

import (
	"context"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// PostSubresource handles a POST to a subresource, such as the binding of a Pod, its eviction or a token request.
// The stages of the write process the posted body instead of the parent object. If hasResponse is false, the result
// o is empty.
func (e *Engine) PostSubresource(
	ctx context.Context, t Target, b Body, c Caller,
) (o Object, hasResponse bool, err error) {
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
		body, err := w.decodeBody(b)
		if err == nil && w.target.Subresource == "" {
			wipeSystemFields(object.EnsureMetadata(body))
		}
		return object.ShallowCopy(body), err
	}
	if err = w.run(); err == nil && w.deletion != nil && w.deletion.deleteAfterMark {
		err = w.deletion.deleteMarked()
	}
	return w.result, w.sub.Respond != nil || w.sub.Do != nil && w.result.Record != nil, err
}

// targetAt returns the target of an object of a built-in kind. If name is empty, the posted body names the object.
// The kind may be one that is not served, because --runtime-config disables it or an APIService delegates it to
// another server.
func (e *Engine) targetAt(p resource.Endpoint, namespace, name string) Target {
	d := e.Live.Load().Definition(p.Resource.Group, p.Resource.Resource)
	i := slices.IndexFunc(d.Versions, func(v *resource.Version) bool {
		return v.GroupVersion.Version == p.Resource.Version
	})
	if !d.Namespaced {
		namespace = ""
	}
	return Target{Version: d.Versions[i], Namespace: namespace, Name: name, Subresource: p.Subresource}
}

// check validates the body of a POST to a subresource.
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

// respond computes the response to the posted body.
func (w *write) respond() error {
	response, err := w.sub.Respond(w.strategyContext(), w.target.Name, w.typed.obj)
	if err != nil {
		return err
	}
	t, err := w.v.Type.FromInternal(response)
	if err != nil {
		return asInternalError(err)
	}
	w.result = ObjectOf(w.v, 0, object.Pack(t, 0))
	return nil
}

// parentWrite returns a write of the parent object, to whose subresource the body was posted. The write skips
// admission, which has already seen the body.
func (w *write) parentWrite(kind opKind) *write {
	o := &write{
		ctx: w.ctx, engine: w.engine, outer: w, target: w.parent,
		caller: w.caller, kind: kind, now: w.now, skipAdmission: true,
	}
	o.setVersion(w.parent.Version)
	o.attemptState = attemptState{head: w.head, guards: w.guards}
	return o
}

// act applies the posted body to the parent object and commits the result. As upstream does, it bypasses the
// kind's strategy and records no field manager.
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
	current := strconv.FormatInt(o.rec.Modified, 10)
	if wants := body.GetResourceVersion(); wants != "" && wants != current {
		return o.storagePreconditionError("ResourceVersion", wants, current)
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

// do runs the subresource's Do function on a copy of the parent object, and stores the object if it is valid.
func (w *write) do() error {
	o := w.parentWrite(opStore)
	o.setVersion(o.def.Storage)
	if err := o.load(); err != nil {
		return err
	}
	o.old, o.obj = o.live, object.Copy(o.live)
	response, err := w.sub.Do(w.strategyContext(), o.obj, object.Copy(w.obj))
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
	if response != nil {
		w.result = ObjectOf(w.v, 0, object.Pack(response, 0))
	}
	return nil
}
