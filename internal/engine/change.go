package engine

import (
	"context"

	"github.com/trellis-k8s/trellis/internal/object"
)

// Create stores a new object, or evaluates a review.
func (e *Engine) Create(ctx context.Context, t Target, b Body, c Caller) (Object, error) {
	t.Name = "" // the body names the object
	kind := opStore
	if t.Version.Definition.Behavior.Review != nil {
		kind = opReview
	}
	w, err := e.newWrite(ctx, t, c, kind)
	if err != nil {
		return Object{}, err
	}
	w.createOnly, w.change = true, bodyChange(b)
	if err := w.run(); err != nil {
		return Object{}, err
	}
	return w.result, nil
}

// Update replaces an object or its subresource. created reports whether the PUT has created the object.
func (e *Engine) Update(ctx context.Context, t Target, b Body, c Caller) (o Object, created bool, err error) {
	w, err := e.newWrite(ctx, t, c, opStore)
	if err != nil {
		return Object{}, false, err
	}
	if t.Subresource == "scale" {
		o, err = w.updateScale(b)
		return o, false, err
	}
	w.change, w.wantUID = bodyChange(b), string(object.UID(b.Tree))
	w.upserts = w.def.Behavior.CreateOnUpdate && t.Subresource == ""
	if err := w.run(); err != nil {
		return Object{}, false, err
	}
	return w.result, w.rec == nil, nil
}

// bodyChange returns a change that replaces the whole object by the body. It decodes the body only once.
func bodyChange(b Body) changeFunc {
	var accepted object.Tree
	var warned []string
	return func(w *write) (object.Tree, error) {
		if accepted == nil {
			t, err := w.decodeBody(b)
			if err != nil {
				return nil, err
			}
			if w.createOnly && w.kind == opStore {
				wipeSystemFields(object.EnsureMetadata(t))
			}
			accepted, warned = t, w.pendingWarnings
			if b.Internal != nil {
				w.typed.decoded = b.Internal
			}
		}
		w.pendingWarnings = warned[:len(warned):len(warned)]
		return object.ShallowCopy(accepted), nil
	}
}

// decode builds the desired object.
func (w *write) decode() (err error) {
	w.desired, err = w.change(w)
	return err
}
