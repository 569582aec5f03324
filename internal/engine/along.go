package engine

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// along adds to the commit what happens to other objects, and what the kind keeps besides.
func (w *write) along() error {
	if w.way == removes && !w.goes {
		return nil
	}
	obj := w.obj
	if w.goes {
		obj = nil
	}
	if along := w.def.Behavior.RelatedWrites; along != nil {
		for _, c := range along(w.rec, obj) {
			if err := w.with(&c); err != nil {
				return err
			}
		}
	}
	if w.def.Behavior.ReserveCapacity == nil {
		return nil
	}
	return w.enter(obj)
}

// enter adds to the commit what the ledger of the kind says. What refuses a write is looked at once more in the newest state there is.
func (w *write) enter(obj object.Tree) error {
	e, err := w.def.Behavior.ReserveCapacity(w.rec, w.old, obj, w.packed.JSON())
	if err != nil {
		if _, err := w.engine.newest(w.ctx); err != nil {
			return err
		}
		e, err = w.def.Behavior.ReserveCapacity(w.rec, w.old, obj, w.packed.JSON())
	}
	w.also, w.guards = append(w.also, e.Writes...), append(w.guards, e.Guards...)
	return asPlain(err)
}

// with adds to the commit the write of another object, by the server itself.
func (w *write) with(c *resource.RelatedWrite) error {
	way := stores
	if c.Delete {
		way = removes
	}
	o, err := w.engine.newWrite(w.ctx, w.engine.targetAt(c.Endpoint, w.target.Namespace, c.Name), itself, way)
	if err != nil {
		return err
	}
	o.within, o.posts, o.change = w, c.Create != nil, func(o *write) (object.Tree, error) { return o.changedBy(c) }
	err = w.engine.upToCommit(o)
	w.ended = append(w.ended, o.ended...) // they are one commit
	switch {
	case c.Delete && apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case !o.untouched:
		w.also, w.guards = append(append(w.also, o.stored()), o.also...), append(w.guards, o.guards...)
	}
	return nil
}

// changedBy is the object as c wants it.
func (w *write) changedBy(c *resource.RelatedWrite) (object.Tree, error) {
	if c.Create != nil {
		return detach(c.Create), nil
	}
	if err := w.load(); err != nil {
		return nil, err
	}
	obj, err := w.v.Type.ToInternal(w.live)
	if err != nil {
		return nil, asInternal(err)
	}
	if err := c.Do(obj); err != nil {
		return nil, err
	}
	t, err := w.v.Type.FromInternal(obj)
	return t, asInternal(err)
}
