package engine

import (
	"context"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// Act does what a POST to a subresource asks for: the binding of a Pod. What it makes of the object goes through the stages as
// any other write.
func (e *Engine) Act(ctx context.Context, t Target, b Body, c Caller) error {
	w, err := e.newWrite(ctx, t, c, stores)
	if err != nil {
		return err
	}
	w.acts = true
	sub := t.Version.Subresource(t.Subresource)
	asks := w.ofBody(sub.Body)
	sent, err := asks.accept(b)
	if err == nil {
		err = asks.inNamespace(sent)
	}
	if err != nil {
		return err
	}
	body, err := sub.Body.Type.ToInternal(sent)
	if err != nil {
		return asInternal(err)
	}
	if err := sub.Check(t.Name, body); err != nil {
		return asPlain(err)
	}
	w.uid = string(object.UID(sent))
	w.change = func(w *write) (object.Tree, error) {
		w.owned = true // who binds owns nothing, as upstream has it
		w.warn(asks.warned...)
		return w.acted(sub, body)
	}
	return w.run()
}

// acted is the live object after what body asks for.
func (w *write) acted(sub *resource.Subresource, body resource.Internal) (object.Tree, error) {
	if err := w.load(); err != nil {
		return nil, err
	}
	now := strconv.FormatInt(w.rec.Modified, 10)
	if wants := body.GetResourceVersion(); wants != "" && wants != now {
		return nil, apierrors.NewConflict(w.v.GroupResource(), w.target.Name, fmt.Errorf(
			"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s",
			w.key(), wants, now))
	}
	obj, err := w.loadStored()
	if err != nil {
		return nil, err
	}
	if err := sub.Act(obj, body); err != nil {
		return nil, asPlain(err)
	}
	wanted, err := w.v.Type.FromInternal(obj)
	return wanted, asInternal(err)
}
