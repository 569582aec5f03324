package engine

import (
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/trellis-k8s/trellis/internal/object"
	"github.com/trellis-k8s/trellis/internal/resource"
)

// relatedWrites adds to the commit what happens to other objects, and what the kind keeps besides.
func (w *write) relatedWrites() error {
	if w.kind == opDelete && !w.deleted {
		return nil
	}
	obj := w.obj
	if w.deleted {
		obj = nil
	}
	if along := w.def.Behavior.RelatedWrites; along != nil {
		for _, c := range along(w.rec, obj) {
			if err := w.addRelated(&c); err != nil {
				return err
			}
		}
	}
	if w.def.Behavior.ReserveCapacity == nil {
		return nil
	}
	return w.reserveCapacity(obj)
}

// reserveCapacity adds to the commit what the ledger of the kind says. What refuses a write is looked at once more in the newest state there is.
func (w *write) reserveCapacity(obj object.Tree) error {
	e, err := w.def.Behavior.ReserveCapacity(w.rec, w.old, obj, w.packed.JSON())
	if err != nil {
		if _, err := w.engine.newest(w.ctx); err != nil {
			return err
		}
		e, err = w.def.Behavior.ReserveCapacity(w.rec, w.old, obj, w.packed.JSON())
	}
	w.related, w.guards = append(w.related, e.Writes...), append(w.guards, e.Guards...)
	return asUnknownError(err)
}

// addRelated adds to the commit the write of another object, by the server itself.
func (w *write) addRelated(c *resource.RelatedWrite) error {
	way := opStore
	if c.Delete {
		way = opDelete
	}
	o, err := w.engine.newWrite(w.ctx, w.engine.targetAt(c.Endpoint, w.target.Namespace, c.Name), serverCaller, way)
	if err != nil {
		return err
	}
	o.outer, o.createOnly, o.change = w, c.Create != nil, func(o *write) (object.Tree, error) { return o.applyRelated(c) }
	err = w.engine.upToCommit(o)
	w.afterAttempt = append(w.afterAttempt, o.afterAttempt...) // they are one commit
	switch {
	case c.Delete && apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case !o.noop:
		w.related, w.guards = append(append(w.related, o.storageWrite()), o.related...), append(w.guards, o.guards...)
	}
	return nil
}

// applyRelated is the object as c wants it.
func (w *write) applyRelated(c *resource.RelatedWrite) (object.Tree, error) {
	if c.Create != nil {
		return shallowCopy(c.Create), nil
	}
	if err := w.load(); err != nil {
		return nil, err
	}
	obj, err := w.v.Type.ToInternal(w.live)
	if err != nil {
		return nil, asInternalError(err)
	}
	if err := c.Do(obj); err != nil {
		return nil, err
	}
	t, err := w.v.Type.FromInternal(obj)
	return t, asInternalError(err)
}
