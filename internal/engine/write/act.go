package write

import (
	"context"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/engine/record"
	"github.com/trellis-k8s/trellis/internal/engine/strategy"
	"github.com/trellis-k8s/trellis/internal/engine/verb"
	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// PostSubresource handles a POST to a subresource, such as the binding of a Pod, its eviction or a token request.
// The stages of the write process the posted body instead of the parent object. If hasResponse is false, the result
// o is empty.
func (wr *Writer) PostSubresource(
	ctx context.Context, t verb.Target, b verb.Body, c verb.Caller,
) (o record.Object, hasResponse bool, err error) {
	w, err := wr.newWrite(ctx, t, c, opAction)
	if err != nil {
		return o, false, err
	}
	w.action.parent, w.CreateOnly = t, true
	if p := t.Version.Definition.PostsTo; p != nil {
		w.action.parent = wr.targetAt(*p, t.Namespace, "")
	}
	w.action.sub = w.action.parent.Version.Subresource(w.action.parent.Subresource)
	w.setVersion(w.action.sub.Body)
	w.change = func(w *write) (object.Tree, error) {
		if object.String(b.Tree, "apiVersion") == w.action.sub.AlternateAPIVersion {
			b.Tree["apiVersion"] = w.Version.APIVersion
		}
		body, err := w.decodeBody(b)
		if err == nil && w.Target.Subresource == "" {
			strategy.WipeSystemFields(object.EnsureMetadata(body))
		}
		return object.ShallowCopy(body), err
	}
	if err = w.run(); err == nil && w.action.deletion != nil && w.action.deletion.deleteAfterMark {
		err = w.action.deletion.deleteMarked()
	}
	return w.result, w.action.sub.Respond != nil || w.action.sub.Do != nil && w.result.Record != nil, err
}

// targetAt returns the target of an object of a built-in kind. If name is empty, the posted body names the object.
// The kind may be one that is not served, because --runtime-config disables it or an APIService delegates it to
// another server.
func (wr *Writer) targetAt(p resource.Endpoint, namespace, name string) verb.Target {
	d := wr.Live.Load().Definition(p.Resource.Group, p.Resource.Resource)
	i := slices.IndexFunc(d.Versions, func(v *resource.Version) bool {
		return v.GroupVersion.Version == p.Resource.Version
	})
	if !d.Namespaced {
		namespace = ""
	}
	return verb.Target{Version: d.Versions[i], Namespace: namespace, Name: name, Subresource: p.Subresource}
}

// check validates the body of a POST to a subresource.
func (w *write) check() (err error) {
	if w.action.sub.Do != nil {
		w.Obj = w.Desired
		return w.validate()
	}
	if w.Typed.Obj, err = w.Version.Type.ToInternal(w.Desired); err != nil {
		return verb.Status(err)
	}
	if w.action.parent.Name == "" {
		w.action.parent.Name = w.Typed.Obj.GetName()
	}
	if w.action.sub.Check != nil {
		err = w.action.sub.Check(w.action.parent.Name, w.Typed.Obj)
	}
	if err == nil && w.action.parent.Name == "" {
		err = apierrors.NewBadRequest("Name parameter required.")
	}
	return verb.Unknown(err)
}

// respond computes the response to the posted body.
func (w *write) respond() error {
	response, err := w.action.sub.Respond(w.StrategyContext(), w.Target.Name, w.Typed.Obj)
	if err != nil {
		return err
	}
	t, err := w.Version.Type.FromInternal(response)
	if err != nil {
		return verb.Status(err)
	}
	w.result = record.NewObject(w.Version, 0, object.Pack(t, 0))
	return nil
}

// parentWrite returns a write of the parent object, to whose subresource the body was posted. The write skips
// admission, which has already seen the body.
func (w *write) parentWrite(kind opKind) *write {
	o := &write{writer: w.writer, kind: kind, outer: w, now: w.now, admission: admissionState{skip: true}}
	o.Ctx, o.Target, o.Caller = w.Ctx, w.action.parent, w.Caller
	o.setVersion(w.action.parent.Version)
	o.state = state{head: w.head, guards: w.guards}
	return o
}

// act applies the posted body to the parent object and commits the result. As upstream does, it bypasses the
// kind's strategy and records no field manager.
func (w *write) act() (err error) {
	switch {
	case w.action.sub.Respond != nil:
		return w.respond()
	case w.action.sub.Delete != nil:
		return w.deleteParent()
	case w.action.sub.Do != nil:
		return w.do()
	}
	body, o := w.Typed.Obj, w.parentWrite(opStore)
	o.wantUID = string(body.GetUID())
	if err := o.load(); err != nil {
		return err
	}
	current := strconv.FormatInt(o.Record.Modified, 10)
	if wants := body.GetResourceVersion(); wants != "" && wants != current {
		return o.storagePreconditionError("ResourceVersion", wants, current)
	}
	obj, err := o.liveInternal()
	if err != nil {
		return err
	}
	if err := w.action.sub.Act(obj, body); err != nil {
		return verb.Unknown(err)
	}
	obj.SetResourceVersion("")
	if o.Obj, err = o.Def.Storage.Type.FromInternal(obj); err != nil {
		return verb.Status(err)
	}
	if o.Old, err = o.LiveAt(o.Def.Storage); err != nil {
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
	o.setVersion(o.Def.Storage)
	if err := o.load(); err != nil {
		return err
	}
	o.Old, o.Obj = o.Live, object.Copy(o.Live)
	response, err := w.action.sub.Do(w.StrategyContext(), o.Obj, object.Copy(w.Obj))
	if err != nil {
		return verb.Unknown(err)
	}
	if strategy.GenerationChanged(o.Obj, o.Old, o.Version.Status) {
		object.SetGeneration(o.Obj, object.Generation(o.Old)+1)
	}
	o.Desired = o.Obj
	for _, step := range []func() error{o.validate, o.convert, o.commit} {
		if err := step(); err != nil {
			return err
		}
	}
	if response != nil {
		w.result = record.NewObject(w.Version, 0, object.Pack(response, 0))
	}
	return nil
}

// deleteParent deletes the parent object, or starts its deletion, as requested by the posted Eviction. Related
// changes are part of the same commit.
func (w *write) deleteParent() error {
	d := w.parentWrite(opDelete)
	defer d.end()
	if err := d.find(); err != nil {
		return err
	}
	obj, err := d.liveInternal()
	if err != nil {
		return err
	}
	deletion, err := w.action.sub.Delete(d.head, obj, w.Typed.Obj, w.Caller.DryRun)
	if err != nil {
		return verb.Unknown(err)
	}
	d.guards = append(d.guards, deletion.Guards...)
	if deletion.Related != nil {
		if err := d.addRelated(deletion.Related); err != nil {
			return err
		}
	}
	if err := validateDeleteOptions(&deletion.Options); err != nil {
		return err
	}
	d.deletion.options, d.Caller.DryRun, d.modified = deletion.Options, len(deletion.Options.DryRun) > 0, obj
	w.action.deletion = d
	if err := d.mark(); err != nil {
		return err
	}
	return d.commit()
}
