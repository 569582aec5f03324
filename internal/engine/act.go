package engine

import (
	"context"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Act does what a POST to a subresource asks for: the binding of a Pod, a token. It is the body that goes through the stages. Where there is an
// answer, said is true.
func (e *Engine) Act(ctx context.Context, t Target, b Body, c Caller) (o Object, said bool, err error) {
	w, err := e.newWrite(ctx, t, c, acts)
	if err != nil {
		return o, false, err
	}
	w.sub, w.posts = t.Version.Subresource(t.Subresource), true
	w.resolve(w.sub.Body)
	w.change = func(w *write) (object.Tree, error) {
		sent, err := w.accept(b)
		return detach(sent), err
	}
	err = w.run()
	return w.answer, w.sub.Answer != nil, err
}

// check judges what is posted.
func (w *write) check() (err error) {
	if w.typed.obj, err = w.v.Type.ToInternal(w.wanted); err != nil {
		return asInternal(err)
	}
	if w.sub.Check == nil {
		return nil
	}
	return asPlain(w.sub.Check(w.target.Name, w.typed.obj))
}

// say answers what is posted.
func (w *write) say() error {
	said, err := w.sub.Answer(w.strategyContext(), w.target.Name, w.typed.obj)
	if err != nil {
		return err
	}
	t, err := w.v.Type.FromInternal(said)
	if err != nil {
		return asInternal(err)
	}
	w.answer = ObjectOf(w.v, 0, object.Pack(t, 0))
	return nil
}

// act stores what becomes of the object. As with upstream's, its strategy has no say in that, and whoever asks owns nothing of it.
func (w *write) act() (err error) {
	if w.sub.Answer != nil {
		return w.say()
	}
	body := w.typed.obj
	o := &write{ctx: w.ctx, engine: w.engine, target: w.target, caller: w.caller, way: stores, uid: string(body.GetUID())}
	o.resolve(w.target.Version)
	o.progress = progress{head: w.head, guards: w.guards}
	if err := o.load(); err != nil {
		return err
	}
	now := strconv.FormatInt(o.rec.Modified, 10)
	if wants := body.GetResourceVersion(); wants != "" && wants != now {
		return apierrors.NewConflict(o.v.GroupResource(), w.target.Name, fmt.Errorf(
			"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s",
			o.key(), wants, now))
	}
	obj, err := o.loadStored()
	if err != nil {
		return err
	}
	if err := w.sub.Act(obj, body); err != nil {
		return asPlain(err)
	}
	obj.SetResourceVersion("")
	if o.obj, err = o.def.Storage.Type.FromInternal(obj); err != nil {
		return asInternal(err)
	}
	if o.old, err = o.liveAtStorage(); err != nil {
		return err
	}
	if err := o.convert(); err != nil {
		return err
	}
	return o.commit()
}
