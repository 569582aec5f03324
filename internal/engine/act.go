package engine

import (
	"context"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Act does what a POST to a subresource asks for: the binding of a Pod. What it makes of the object goes through the stages as
// any other write.
func (e *Engine) Act(ctx context.Context, t Target, b Body, c Caller) error {
	w, err := e.newWrite(ctx, t, c, stores)
	if err != nil {
		return err
	}
	sub := t.Version.Subresource(t.Subresource)
	asks := w.ofBody(sub.Body)
	sent, err := asks.accept(b)
	if err == nil {
		err = asks.locates(sent)
	}
	if err != nil {
		return err
	}
	body, err := sub.Body.Type.ToInternal(sent)
	if err != nil {
		return asInternal(err)
	}
	w.uid = string(object.UID(sent))
	w.change = func(w *write) (object.Tree, error) {
		w.owned = true // who binds owns nothing, as upstream has it
		w.warn(asks.warned...)
		if err := w.load(); err != nil {
			return nil, err
		}
		obj, err := w.loadStored()
		if err != nil {
			return nil, err
		}
		if err := sub.Act(obj, body); err != nil {
			return nil, err
		}
		if rv := body.GetResourceVersion(); rv != "" {
			obj.SetResourceVersion(rv)
		}
		wanted, err := w.v.Type.FromInternal(obj)
		return wanted, asInternal(err)
	}
	return w.run()
}
